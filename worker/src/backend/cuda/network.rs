//! A model on the device: its layers with room for their activations and gradients, made once for the largest
//! minibatch. Nothing is allocated in a step.

use cudarc::driver::CudaFunction;
use cudarc::driver::sys::CUdeviceptr;

use super::compiler::Kernels;
use super::dataset::Images;
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::Array;
use super::products::{After, Matrix, Turned};
use crate::program::{Activation, Conv, Dense, Dropout, InputGradient, Op, Planes, Pool, Program};

/// Blocks that together keep a large GPU busy.
const BLOCKS_BUSY: usize = 512;
/// Parts that column sums are computed in, at most.
const PARTS_MAX: usize = 32;

/// What the arrays of weights and their gradient begin at.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    pub(super) values: CUdeviceptr,
    pub(super) gradient: CUdeviceptr,
}

impl Weights {
    fn value(self, index: usize) -> CUdeviceptr {
        self.values + (index * size_of::<f32>()) as u64
    }

    fn gradient(self, index: usize) -> CUdeviceptr {
        self.gradient + (index * size_of::<f32>()) as u64
    }
}

/// The sizes of a convolution, as the kernels have them.
#[derive(Clone, Copy)]
#[repr(C)]
struct Geometry {
    channels: u32,
    height: u32,
    width: u32,
    kernel: u32,
    stride: u32,
    pad: u32,
    rows: u32,
    columns: u32,
    samples: u32,
}

/// The sizes of a pooling layer, as the kernels have them.
#[derive(Clone, Copy)]
#[repr(C)]
struct Squares {
    planes: u32,
    height: u32,
    width: u32,
    size: u32,
}

enum Kind {
    Dense(Dense),
    Conv {
        conv: Conv,
        /// The unfolded minibatch, and on the way back its gradient.
        unfolded: Array<f32>,
        unfolded_gradient: Array<f32>,
    },
    MaxPool {
        pool: Pool,
        winners: Array<u32>,
    },
    MeanPool(Pool),
    /// An activation: its kernels forward and back.
    Each(fn(&Kernels) -> (&CudaFunction, &CudaFunction)),
    Dropout(Dropout),
    /// From channels of samples to samples of channels: images become rows.
    ToRows(Planes),
}

struct Layer {
    kind: Kind,
    /// Numbers per sample before and after it.
    inputs: usize,
    outputs: usize,
    y: Array<f32>,
    dy: Array<f32>,
}

/// The layers of a model, and what their products need beside weights.
pub(super) struct CudaNetwork {
    layers: Vec<Layer>,
    input: Images,
    x: Array<f32>,
    labels: Array<u32>,
    losses: Array<f32>,
    /// Column sums, in parts.
    sums: Array<f32>,
}

impl CudaNetwork {
    pub(super) fn new(gpu: &Gpu, program: &Program, minibatch: usize) -> Result<Self, GpuError> {
        let Planes { channels, plane } = program.input;
        let mut layers: Vec<Layer> = Vec::new();
        let mut inputs = channels * plane;
        let mut columns_max = 0;
        for op in &program.ops {
            let outputs = op.outputs(inputs);
            columns_max = columns_max.max(match op {
                Op::Dense(dense) => dense.outputs,
                Op::Conv(conv) => conv.geometry.outputs,
                _ => 0,
            });
            let kind = Self::kind(gpu, op, minibatch)?;
            layers.push(Layer::new(gpu, kind, (inputs, outputs), minibatch)?);
            inputs = outputs;
        }
        Ok(Self {
            layers,
            input: Images {
                channels: channels as u32,
                samples: 0,
                plane: plane as u32,
            },
            x: Array::zeros(gpu, minibatch * channels * plane)?,
            labels: Array::zeros(gpu, minibatch)?,
            losses: Array::zeros(gpu, minibatch)?,
            sums: Array::zeros(gpu, PARTS_MAX * columns_max)?,
        })
    }

    fn kind(gpu: &Gpu, op: &Op, minibatch: usize) -> Result<Kind, GpuError> {
        Ok(match op {
            Op::Dense(dense) => Kind::Dense(dense.clone()),
            Op::Conv(conv) => {
                let geometry = conv.geometry;
                let unfolded = minibatch * geometry.window() * geometry.positions();
                let back = match conv.input_gradient {
                    InputGradient::Needed => unfolded,
                    InputGradient::NotNeeded => 0,
                };
                Kind::Conv {
                    conv: conv.clone(),
                    unfolded: Array::zeros(gpu, unfolded)?,
                    unfolded_gradient: Array::zeros(gpu, back)?,
                }
            }
            Op::MaxPool(pool) => Kind::MaxPool {
                pool: *pool,
                winners: Array::zeros(gpu, minibatch * pool.output_len())?,
            },
            Op::MeanPool(pool) => Kind::MeanPool(*pool),
            Op::Activation(Activation::Relu) => Kind::Each(|all| (&all.relu, &all.relu_back)),
            Op::Activation(Activation::Tanh) => Kind::Each(|all| (&all.tanh_all, &all.tanh_all_back)),
            Op::Activation(Activation::Sigmoid) => Kind::Each(|all| (&all.sigmoid, &all.sigmoid_back)),
            Op::Activation(Activation::Gelu) => Kind::Each(|all| (&all.gelu, &all.gelu_back)),
            Op::Dropout(dropout) => Kind::Dropout(*dropout),
            Op::ToRows(planes) => Kind::ToRows(*planes),
        })
    }

    /// Where a minibatch of so many samples is to lie, and its labels.
    pub(super) fn input(&self, samples: usize) -> (Images, (CUdeviceptr, CUdeviceptr)) {
        let samples = samples as u32;
        (Images { samples, ..self.input }, (self.x.at(), self.labels.at()))
    }

    /// Each sample's loss, once they are computed.
    pub(super) fn losses(&self) -> CUdeviceptr {
        self.losses.at()
    }

    /// Forward, loss and backward: writes the whole gradient.
    pub(super) fn compute(&self, gpu: &Gpu, weights: Weights, samples: usize, key: u64) -> Result<(), GpuError> {
        gpu.products.compete(samples == self.labels.len());
        let mut x = self.x.at();
        for layer in &self.layers {
            // SAFETY: every array has room for the largest minibatch, weights lie where the layout has put them, and
            // each kernel is told the sizes of the arrays that it is given.
            unsafe { layer.forward(gpu, weights, x, samples, key)? };
            x = layer.y.at();
        }
        let Some(last) = self.layers.last() else {
            return Ok(());
        };
        let classes = last.outputs;
        // A warp that keeps four logits a thread, or a block that keeps sixteen, or one that reads them again.
        let (kernel, threads) = match classes {
            ..=128 => (&gpu.kernels.softmax_few, 32),
            129..=8192 => (&gpu.kernels.softmax_many, 512),
            _ => (&gpu.kernels.softmax_any, 512),
        };
        let launch = gpu.kernel(kernel).with(last.y.at()).with(self.labels.at());
        let launch = launch.with(classes as u32).with(1.0 / samples as f32);
        let launch = launch.with(self.losses.at()).with(last.dy.at());
        // SAFETY: as above; one block for each row of logits.
        unsafe { launch.blocks((samples, 1), (threads, 1))? };
        for at in (0..self.layers.len()).rev() {
            let before = at.checked_sub(1).map(|before| &self.layers[before]);
            let layer = &self.layers[at];
            let dy = layer.dy.at();
            let x = before.map_or(self.x.at(), |before| before.y.at());
            let dx = before.map(|before| before.dy.at());
            // SAFETY: as above.
            unsafe { layer.backward(gpu, weights, (x, dy, dx), samples, key, self.sums.at())? };
        }
        Ok(())
    }
}

impl Layer {
    fn new(gpu: &Gpu, kind: Kind, (inputs, outputs): (usize, usize), minibatch: usize) -> Result<Self, GpuError> {
        // Kernels count in 32 bits, and a grid of blocks has a side of at most so many.
        const SIDE_MAX: usize = 65_535;
        let numbers = match &kind {
            Kind::Conv { conv, .. } if conv.geometry.window().max(conv.geometry.outputs) > SIDE_MAX => usize::MAX,
            _ => minibatch.saturating_mul(inputs.max(outputs)),
        };
        if u32::try_from(numbers).is_err() {
            return Err(GpuError::TooLarge { minibatch, outputs });
        }
        Ok(Self {
            kind,
            inputs,
            outputs,
            y: Array::zeros(gpu, minibatch * outputs)?,
            dy: Array::zeros(gpu, minibatch * outputs)?,
        })
    }

    unsafe fn forward(
        &self,
        gpu: &Gpu,
        weights: Weights,
        x: CUdeviceptr,
        samples: usize,
        key: u64,
    ) -> Result<(), GpuError> {
        let (y, total) = (self.y.at(), samples * self.outputs);
        let kernels = &gpu.kernels;
        // SAFETY: the caller's word, for all of it.
        unsafe {
            match &self.kind {
                Kind::Dense(dense) => dense_forward(gpu, dense, weights, (x, y), samples),
                Kind::Conv { conv, unfolded, .. } => conv_forward(gpu, conv, weights, (x, unfolded.at(), y), samples),
                Kind::MaxPool { pool, winners } => {
                    let launch = gpu.kernel(&kernels.max_pool).with(x).with(squares(pool, samples));
                    launch.with(y).with(winners.at()).each(total)
                }
                Kind::MeanPool(pool) => {
                    let launch = gpu.kernel(&kernels.mean_pool).with(x).with(squares(pool, samples));
                    launch.with(y).each(total)
                }
                Kind::Each(kernel) => {
                    let (forward, _) = kernel(kernels);
                    gpu.kernel(forward).with(x).with(y).with(total as u32).each(total)
                }
                Kind::Dropout(op) => dropout(gpu, *op, key, (x, y), total),
                Kind::ToRows(Planes { channels, plane }) => swap(gpu, x, (*channels, samples, *plane), y),
            }
        }
    }

    unsafe fn backward(
        &self,
        gpu: &Gpu,
        weights: Weights,
        (x, dy, dx): (CUdeviceptr, CUdeviceptr, Option<CUdeviceptr>),
        samples: usize,
        key: u64,
        sums: CUdeviceptr,
    ) -> Result<(), GpuError> {
        let (y, total) = (self.y.at(), samples * self.inputs);
        let kernels = &gpu.kernels;
        // SAFETY: the caller's word, for all of it.
        unsafe {
            match &self.kind {
                Kind::Dense(dense) => dense_backward(gpu, dense, weights, (x, y, dy, dx), samples, sums),
                Kind::Conv {
                    conv,
                    unfolded,
                    unfolded_gradient,
                } => {
                    let unfolded = (unfolded.at(), unfolded_gradient.at());
                    conv_backward(gpu, conv, weights, unfolded, (y, dy, dx), samples, sums)
                }
                kind => {
                    // A layer without weights that comes first has nobody to hand its gradient to.
                    let Some(dx) = dx else {
                        return Ok(());
                    };
                    match kind {
                        Kind::MaxPool { pool, winners } => {
                            let launch = gpu.kernel(&kernels.max_pool_back).with(dy).with(winners.at());
                            launch.with(squares(pool, samples)).with(dx).each(total)
                        }
                        Kind::MeanPool(pool) => {
                            let launch = gpu.kernel(&kernels.mean_pool_back).with(dy);
                            launch.with(squares(pool, samples)).with(dx).each(total)
                        }
                        Kind::Each(kernel) => {
                            let (_, back) = kernel(kernels);
                            let launch = gpu.kernel(back).with(x).with(y).with(dy).with(dx);
                            launch.with(total as u32).each(total)
                        }
                        Kind::Dropout(op) => dropout(gpu, *op, key, (dy, dx), total),
                        Kind::ToRows(Planes { channels, plane }) => swap(gpu, dy, (samples, *channels, *plane), dx),
                        Kind::Dense(_) | Kind::Conv { .. } => Ok(()),
                    }
                }
            }
        }
    }
}

fn squares(pool: &Pool, samples: usize) -> Squares {
    Squares {
        planes: (pool.channels * samples) as u32,
        height: pool.height as u32,
        width: pool.width as u32,
        size: pool.size as u32,
    }
}

unsafe fn dropout(
    gpu: &Gpu,
    op: Dropout,
    key: u64,
    (from, to): (CUdeviceptr, CUdeviceptr),
    total: usize,
) -> Result<(), GpuError> {
    let launch = gpu.kernel(&gpu.kernels.dropout).with(from).with(to).with(total as u32);
    // SAFETY: the caller's word.
    unsafe { launch.with(op.border()).with(op.kept()).with(op.key(key)).each(total) }
}

unsafe fn swap(
    gpu: &Gpu,
    from: CUdeviceptr,
    (outer, inner, plane): (usize, usize, usize),
    to: CUdeviceptr,
) -> Result<(), GpuError> {
    let launch = gpu.kernel(&gpu.kernels.swap_outer).with(from);
    let launch = launch.with(outer as u32).with(inner as u32).with(plane as u32).with(to);
    // SAFETY: the caller's word.
    unsafe { launch.each(outer * inner * plane) }
}

/// A matrix of whole rows is, in columns, its own turned one.
fn matrix(at: CUdeviceptr, stride: usize, turned: Turned) -> Matrix {
    Matrix { at, stride, turned }
}

/// A plain product.
unsafe fn multiply(
    gpu: &Gpu,
    sizes: (usize, usize, usize),
    a: Matrix,
    b: Matrix,
    out: (CUdeviceptr, usize),
) -> Result<(), GpuError> {
    // SAFETY: the caller's word.
    let done = unsafe { gpu.products.multiply(sizes, a, b, out, (After::Nothing, 0)) }?;
    if done { Ok(()) } else { Err(GpuError::NoProduct(sizes)) }
}

/// `y = x Wᵀ + b`
unsafe fn dense_forward(
    gpu: &Gpu,
    dense: &Dense,
    weights: Weights,
    (x, y): (CUdeviceptr, CUdeviceptr),
    samples: usize,
) -> Result<(), GpuError> {
    let Dense { inputs, outputs, .. } = *dense;
    let weight = matrix(weights.value(dense.weight.start), inputs, Turned::Yes);
    let rows = matrix(x, inputs, Turned::No);
    let bias = weights.value(dense.bias.start);
    let total = samples * outputs;
    // SAFETY: the caller's word.
    unsafe {
        let after = if dense.relu { After::BiasRelu } else { After::Bias };
        let sizes = (outputs, samples, inputs);
        if gpu
            .products
            .multiply(sizes, weight, rows, (y, outputs), (after, bias))?
        {
            return Ok(());
        }
        // A bias that is not aligned as the library wants it is added afterwards.
        multiply(gpu, sizes, weight, rows, (y, outputs))?;
        if outputs.is_multiple_of(4) {
            let launch = gpu.kernel(&gpu.kernels.bias_rows4).with(y).with(bias);
            let launch = launch.with(outputs as u32 / 4).with(total as u32 / 4);
            launch.with(u32::from(dense.relu)).each(total / 4)
        } else {
            let launch = gpu.kernel(&gpu.kernels.bias).with(y).with(bias).with(1u32);
            let launch = launch.with(outputs as u32).with(total as u32);
            launch.with(u32::from(dense.relu)).each(total)
        }
    }
}

unsafe fn dense_backward(
    gpu: &Gpu,
    dense: &Dense,
    weights: Weights,
    (x, y, dy, dx): (CUdeviceptr, CUdeviceptr, CUdeviceptr, Option<CUdeviceptr>),
    samples: usize,
    sums: CUdeviceptr,
) -> Result<(), GpuError> {
    const COLUMNS: usize = 32;
    const ROWS: usize = 8;
    let Dense { inputs, outputs, .. } = *dense;
    let (kernel, columns) = if outputs.is_multiple_of(4) {
        (&gpu.kernels.bias_rows4_back, outputs / 4)
    } else {
        (&gpu.kernels.bias_rows_back, outputs)
    };
    let blocks = columns.div_ceil(COLUMNS);
    let parts = (BLOCKS_BUSY / blocks).clamp(1, PARTS_MAX).min(samples.div_ceil(ROWS));
    // SAFETY: the caller's word.
    unsafe {
        let launch = gpu
            .kernel(kernel)
            .with(dy)
            .with(y)
            .with(samples as u32)
            .with(columns as u32);
        let launch = launch.with(u32::from(dense.relu)).with(sums);
        launch.blocks((blocks, parts), (COLUMNS, ROWS))?;
        add_parts(gpu, sums, parts, outputs, weights.gradient(dense.bias.start))?;
        multiply(
            gpu,
            (inputs, outputs, samples),
            matrix(x, inputs, Turned::No),
            matrix(dy, outputs, Turned::Yes),
            (weights.gradient(dense.weight.start), inputs),
        )?;
        match dx {
            Some(dx) if dense.input_gradient == InputGradient::Needed => multiply(
                gpu,
                (inputs, samples, outputs),
                matrix(weights.value(dense.weight.start), inputs, Turned::No),
                matrix(dy, outputs, Turned::No),
                (dx, inputs),
            ),
            _ => Ok(()),
        }
    }
}

unsafe fn add_parts(
    gpu: &Gpu,
    sums: CUdeviceptr,
    parts: usize,
    columns: usize,
    to: CUdeviceptr,
) -> Result<(), GpuError> {
    let launch = gpu.kernel(&gpu.kernels.add_parts).with(sums);
    // SAFETY: the caller's word.
    unsafe { launch.with(parts as u32).with(columns as u32).with(to).each(columns) }
}

fn geometry(conv: &Conv, samples: usize) -> Geometry {
    let geometry = conv.geometry;
    Geometry {
        channels: geometry.channels as u32,
        height: geometry.height as u32,
        width: geometry.width as u32,
        kernel: geometry.kernel as u32,
        stride: geometry.stride as u32,
        pad: geometry.pad as u32,
        rows: geometry.rows() as u32,
        columns: geometry.columns() as u32,
        samples: samples as u32,
    }
}

/// Kernels times unfolded images, for the whole minibatch at once.
unsafe fn conv_forward(
    gpu: &Gpu,
    conv: &Conv,
    weights: Weights,
    (x, unfolded, y): (CUdeviceptr, CUdeviceptr, CUdeviceptr),
    samples: usize,
) -> Result<(), GpuError> {
    const THREADS: usize = 256;
    let (window, outputs) = (conv.geometry.window(), conv.geometry.outputs);
    let positions = samples * conv.geometry.positions();
    let kernels = matrix(weights.value(conv.weight.start), window, Turned::No);
    // SAFETY: the caller's word.
    unsafe {
        let launch = gpu
            .kernel(&gpu.kernels.unfold)
            .with(x)
            .with(geometry(conv, samples))
            .with(unfolded);
        launch.blocks((positions.div_ceil(THREADS), window), (THREADS, 1))?;
        let columns = matrix(unfolded, positions, Turned::No);
        multiply(gpu, (positions, outputs, window), columns, kernels, (y, positions))?;
        let launch = gpu
            .kernel(&gpu.kernels.bias)
            .with(y)
            .with(weights.value(conv.bias.start));
        let launch = launch.with(positions as u32).with(outputs as u32);
        let launch = launch.with((positions * outputs) as u32).with(u32::from(conv.relu));
        launch.each(positions * outputs)
    }
}

unsafe fn conv_backward(
    gpu: &Gpu,
    conv: &Conv,
    weights: Weights,
    (unfolded, unfolded_gradient): (CUdeviceptr, CUdeviceptr),
    (y, dy, dx): (CUdeviceptr, CUdeviceptr, Option<CUdeviceptr>),
    samples: usize,
    sums: CUdeviceptr,
) -> Result<(), GpuError> {
    const THREADS: usize = 256;
    let (window, outputs) = (conv.geometry.window(), conv.geometry.outputs);
    let positions = samples * conv.geometry.positions();
    let parts = (BLOCKS_BUSY / outputs)
        .clamp(1, PARTS_MAX)
        .min(positions.div_ceil(THREADS));
    // SAFETY: the caller's word.
    unsafe {
        let launch = gpu
            .kernel(&gpu.kernels.bias_planes_back)
            .with(dy)
            .with(y)
            .with(positions as u32);
        launch
            .with(u32::from(conv.relu))
            .with(sums)
            .blocks((parts, outputs), (THREADS, 1))?;
        add_parts(gpu, sums, parts, outputs, weights.gradient(conv.bias.start))?;
        let planes = matrix(dy, positions, Turned::No);
        multiply(
            gpu,
            (window, outputs, positions),
            matrix(unfolded, positions, Turned::Yes),
            planes,
            (weights.gradient(conv.weight.start), window),
        )?;
        match dx {
            Some(dx) if conv.input_gradient == InputGradient::Needed => {
                let kernels = matrix(weights.value(conv.weight.start), window, Turned::Yes);
                multiply(
                    gpu,
                    (positions, window, outputs),
                    planes,
                    kernels,
                    (unfolded_gradient, positions),
                )?;
                let launch = gpu.kernel(&gpu.kernels.fold).with(unfolded_gradient);
                launch
                    .with(geometry(conv, samples))
                    .with(dx)
                    .each(samples * conv.geometry.input_len())
            }
            _ => Ok(()),
        }
    }
}
