//! Convolution on the GPU: a matrix product of the kernels with the unfolded (im2col) images of the whole minibatch.

use protocol::job::model::Activation;

use super::super::abi::ConvGeometry;
use super::super::address::DeviceAddress;
use super::super::error::GpuError;
use super::super::gpu::{Gpu, Grid};
use super::super::kernels::{AddBias, BiasPlanesBack, Fold, Unfold};
use super::super::memory::Array;
use super::super::products::{Epilogue, Matrix, Product, Sizes};
use super::elementwise::activate;
use super::sums::{add_parts, parts};
use super::{BackwardArrays, ForwardArrays};
use crate::model::program::{Conv, InputGradient, Op};

const THREADS: usize = 256;

/// Buffers of a convolution: the unfolded minibatch (im2col), and its gradient in the backward pass.
pub(in super::super) struct ConvRoom {
    unfolded: Array<f32>,
    unfolded_gradient: Array<f32>,
    /// True if several layers share the buffers of unfolded inputs; then the backward pass unfolds its input again.
    is_shared: bool,
}

impl ConvRoom {
    /// Allocates the buffers of one convolution.
    pub(super) fn new(
        gpu: &Gpu,
        conv: &Conv,
        minibatch: usize,
        input_gradient: InputGradient,
    ) -> Result<Self, GpuError> {
        let numbers = minibatch * unfolded_len(conv);
        let back = match input_gradient {
            InputGradient::Needed => numbers,
            InputGradient::NotNeeded => 0,
        };
        Ok(Self {
            unfolded: Array::zeros(gpu, numbers)?,
            unfolded_gradient: Array::zeros(gpu, back)?,
            is_shared: false,
        })
    }

    /// Allocates buffers that all convolutions among the operations share; if `trains`, also buffers for gradients.
    pub(in super::super) fn of_all(gpu: &Gpu, ops: &[Op], minibatch: usize, trains: bool) -> Result<Self, GpuError> {
        let numbers = minibatch * largest(ops);
        Ok(Self {
            unfolded: Array::zeros(gpu, numbers)?,
            unfolded_gradient: Array::zeros(gpu, if trains { numbers } else { 0 })?,
            is_shared: true,
        })
    }
}

/// Returns the unfolded numbers (im2col) per sample; 0 for 1×1 kernels, which use the input as it is.
fn unfolded_len(conv: &Conv) -> usize {
    if conv.geometry.is_pointwise() {
        0
    } else {
        conv.geometry.window() * conv.geometry.positions()
    }
}

fn largest(ops: &[Op]) -> usize {
    let of = |op: &Op| match op {
        Op::Conv(conv) => unfolded_len(conv),
        Op::Residual(block) => largest(&block.body).max(largest(&block.skip)),
        _ => 0,
    };
    ops.iter().map(of).max().unwrap_or(0)
}

/// Launches the unfolding (im2col) of a minibatch.
///
/// # Safety
/// `x` must have `samples` samples, and `room` must be made for as many.
unsafe fn unfold(
    gpu: &Gpu,
    conv: &Conv,
    room: &ConvRoom,
    samples: usize,
    x: DeviceAddress<f32>,
) -> Result<(), GpuError> {
    if conv.geometry.is_pointwise() {
        return Ok(());
    }
    let arguments = Unfold {
        x,
        by: geometry(conv, samples),
        unfolded: room.unfolded.at(),
    };
    let positions = samples * conv.geometry.positions();
    let each_channel = Grid {
        blocks: (positions.div_ceil(THREADS), conv.geometry.channels),
        threads: (THREADS, 1),
    };
    // SAFETY: the caller promises arrays of the sizes that the kernels read and write.
    unsafe { gpu.launch(&gpu.kernels.unfold, each_channel, arguments) }
}

/// Returns the address of the unfolded minibatch (im2col); for 1×1 kernels, that of the input itself.
fn unfolded(conv: &Conv, room: &ConvRoom, x: DeviceAddress<f32>) -> DeviceAddress<f32> {
    if conv.geometry.is_pointwise() {
        x
    } else {
        room.unfolded.at()
    }
}

fn geometry(conv: &Conv, samples: usize) -> ConvGeometry {
    let geometry = conv.geometry;
    ConvGeometry {
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

/// Launches the forward pass of a convolution.
///
/// # Safety
/// `at` must satisfy [`ForwardArrays`] for this layer, and `room` must be made for `at.samples` samples.
pub(super) unsafe fn forward(gpu: &Gpu, conv: &Conv, room: &ConvRoom, at: ForwardArrays) -> Result<(), GpuError> {
    let (window, outputs) = (conv.geometry.window(), conv.geometry.outputs);
    let positions = at.samples * conv.geometry.positions();
    let product = Product {
        sizes: Sizes {
            rows: positions,
            columns: outputs,
            inner: window,
        },
        a: Matrix::plain(unfolded(conv, room, at.x), positions),
        b: Matrix::plain(at.weights.plus(conv.weight.start), window),
        out: Matrix::plain(at.y, positions),
        epilogue: Epilogue::Nothing,
    };
    let bias = AddBias {
        y: at.y,
        bias: at.weights.plus(conv.bias.start),
        inner: positions as u32,
        outputs: outputs as u32,
        total: (positions * outputs) as u32,
        relu: u32::from(conv.relu),
    };
    // SAFETY: the layout places this layer's weights at `conv.weight` and `conv.bias`; the caller promises the rest.
    unsafe {
        unfold(gpu, conv, room, at.samples, at.x)?;
        gpu.products.multiply(product)?;
        match (conv.bias.is_empty(), conv.relu) {
            (false, _) => gpu.launch(&gpu.kernels.bias, Grid::each(positions * outputs), bias),
            (true, true) => activate(gpu, Activation::Relu, positions * outputs, (at.y, at.y)),
            (true, false) => Ok(()),
        }
    }
}

/// Launches the backward pass of a convolution.
///
/// # Safety
/// `at` must satisfy [`BackwardArrays`] for this layer, `room` must be made for `at.samples` samples and, unless it is
/// shared, must still hold the result of the forward pass.
pub(super) unsafe fn backward(gpu: &Gpu, conv: &Conv, room: &ConvRoom, at: BackwardArrays) -> Result<(), GpuError> {
    let (window, outputs) = (conv.geometry.window(), conv.geometry.outputs);
    let positions = at.samples * conv.geometry.positions();
    let parts = parts(outputs, positions.div_ceil(THREADS));
    let bias = BiasPlanesBack {
        dy: at.dy,
        y: at.y,
        plane: positions as u32,
        relu: u32::from(conv.relu),
        sums: at.sums,
    };
    let each_part = Grid {
        blocks: (parts, outputs),
        threads: (THREADS, 1),
    };
    let planes = Matrix::plain(at.dy, positions);
    // SAFETY: the layout places this layer's weights at `conv.weight` and `conv.bias`; the caller promises the rest.
    unsafe {
        if conv.relu || !conv.bias.is_empty() {
            gpu.launch(&gpu.kernels.bias_planes_back, each_part, bias)?;
        }
        if room.is_shared {
            unfold(gpu, conv, room, at.samples, at.x)?;
        }
        let weight_gradient = Product {
            sizes: Sizes {
                rows: window,
                columns: outputs,
                inner: positions,
            },
            a: Matrix::transposed(unfolded(conv, room, at.x), positions),
            b: planes,
            out: Matrix::plain(at.gradient.plus(conv.weight.start), window),
            epilogue: Epilogue::Nothing,
        };
        gpu.branch(|| {
            if !conv.bias.is_empty() {
                add_parts(gpu, at.sums, parts, outputs, at.gradient.plus(conv.bias.start))?;
            }
            gpu.products.multiply(weight_gradient)
        })?;
        let Some(dx) = at.dx else {
            return Ok(());
        };
        let pointwise = conv.geometry.is_pointwise();
        gpu.products.multiply(Product {
            sizes: Sizes {
                rows: positions,
                columns: window,
                inner: outputs,
            },
            a: planes,
            b: Matrix::transposed(at.weights.plus(conv.weight.start), window),
            out: Matrix::plain(if pointwise { dx } else { room.unfolded_gradient.at() }, positions),
            epilogue: Epilogue::Nothing,
        })?;
        if pointwise {
            return Ok(());
        }
        let fold = Fold {
            unfolded: room.unfolded_gradient.at(),
            by: geometry(conv, at.samples),
            dx,
        };
        let pixels = at.samples * conv.geometry.input_len();
        gpu.launch(&gpu.kernels.fold, Grid::each(pixels), fold)
    }
}
