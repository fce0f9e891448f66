//! The program of a model: the list of operations that compute it, lowered from the layers of a job, with each relu
//! fused into the operation before it where possible. It is plain data without weights; every device runs the same
//! program.

mod lowering;
mod norm;

use std::ops::Range;

use protocol::job::model::{Activation, Layout, Partition, PipelineStage, PlacedLayer, Shape, StageSlice};

use lowering::{image, lowered, lowered_after, with_turns_to_rows};
pub use norm::{Norm, Sets};

/// An operation. It reads a minibatch of activations and writes another one.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A dense layer, `y = x Wᵀ + b`, optionally followed by relu.
    Dense(Dense),
    /// A convolution, optionally followed by relu.
    Conv(Conv),
    /// Max pooling: the largest number of each window.
    MaxPool(Pool),
    /// Mean pooling: the mean of each window.
    MeanPool(Pool),
    /// An activation: a function of each number by itself.
    Activation(Activation),
    /// Normalisation of sets of numbers to mean 0 and variance 1 (batch, layer or group norm).
    Norm(Norm),
    /// A residual block: the sum of two paths.
    Residual(Residual),
    /// Dropout: sets some numbers to zero at random.
    Dropout(Dropout),
    /// Converts images stored by channel to rows, one per sample.
    ToRows(Planes),
    /// Converts rows to images stored by channel.
    FromRows(Planes),
}

/// A dense layer: its sizes, and the indices of its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dense {
    /// Numbers per sample in the layer's input.
    pub inputs: usize,
    /// Numbers per sample in the layer's output.
    pub outputs: usize,
    /// Indices of the dense layer's matrix among the model's weights: `outputs` rows of `inputs`.
    pub weight: Range<usize>,
    /// Indices of the biases among the model's weights.
    pub bias: Range<usize>,
    /// True if relu is applied to the layer's output.
    pub relu: bool,
    /// Tells if the layer must compute the gradient of its input.
    pub input_gradient: InputGradient,
}

/// A convolution layer: its sizes, and the indices of its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv {
    pub geometry: Geometry,
    /// Indices of the convolution's kernels among the model's weights, one kernel after the other.
    pub weight: Range<usize>,
    /// Indices of the biases among the model's weights; an empty range if there are none.
    pub bias: Range<usize>,
    /// True if relu is applied to the layer's output.
    pub relu: bool,
    /// Tells if the layer must compute the gradient of its input.
    pub input_gradient: InputGradient,
}

/// A residual block: the sum of two paths with the same input, optionally followed by relu.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// Operations of the residual block's main path.
    pub body: Vec<Op>,
    /// Operations of the residual block's skip path; if there are none, the block's input itself is added.
    pub skip: Vec<Op>,
    /// True if the residual block's samples are vectors, which every device stores as rows; false for images.
    pub flat: bool,
    /// True if relu is applied to the sum of the residual block's two paths.
    pub relu: bool,
}

/// Tells if an operation must compute the gradient of its input. At the first layer nothing before it can be trained,
/// which saves a third of that layer's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputGradient {
    /// The gradient is needed: an operation with weights precedes, here or in an earlier pipeline stage.
    Needed,
    /// The gradient is not needed: only data and operations without weights precede.
    NotNeeded,
}

/// Sizes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of planes (channels) of the convolution's input.
    pub channels: usize,
    /// Number of rows of an input plane.
    pub height: usize,
    /// Number of columns of an input plane.
    pub width: usize,
    /// Number of planes (channels) of the convolution's output.
    pub outputs: usize,
    /// Number of rows of a kernel, and of its columns.
    pub kernel: usize,
    /// Distance between two neighbouring positions of a kernel.
    pub stride: usize,
    /// Number of rows or columns of zeros on each side of an input plane.
    pub pad: usize,
}

impl Geometry {
    /// True for a 1×1 kernel with stride 1 and no padding.
    pub(crate) fn is_pointwise(&self) -> bool {
        (self.kernel, self.stride, self.pad) == (1, 1, 0)
    }

    pub(crate) fn rows(&self) -> usize {
        (self.height + 2 * self.pad - self.kernel) / self.stride + 1
    }

    pub(crate) fn columns(&self) -> usize {
        (self.width + 2 * self.pad - self.kernel) / self.stride + 1
    }

    /// Returns the number of positions of a kernel, which is the number of values in an output plane.
    pub(crate) fn positions(&self) -> usize {
        self.rows() * self.columns()
    }

    /// Returns the number of input values under a kernel at one position, in all channels.
    pub(crate) fn window(&self) -> usize {
        self.channels * self.kernel * self.kernel
    }

    pub(crate) fn input_len(&self) -> usize {
        self.channels * self.height * self.width
    }

    pub(crate) fn output_len(&self) -> usize {
        self.outputs * self.positions()
    }
}

/// A pooling layer: adjacent windows of rows and columns; a remainder at the edges is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Number of planes (channels) per sample.
    pub channels: usize,
    /// Number of rows of an input plane.
    pub height: usize,
    /// Number of columns of an input plane.
    pub width: usize,
    /// Rows and columns of a pooling window.
    pub window: (usize, usize),
}

impl Pool {
    pub(crate) fn rows(&self) -> usize {
        self.height / self.window.0
    }

    pub(crate) fn columns(&self) -> usize {
        self.width / self.window.1
    }

    pub(crate) fn output_len(&self) -> usize {
        self.channels * self.rows() * self.columns()
    }
}

/// Dropout: in training each number is dropped with a probability, and the others are scaled up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability with which dropout drops a number.
    pub probability: f64,
    /// Number of the dropout among the operations of the model, which makes its random decisions differ from others'.
    pub place: u64,
    /// Number of the slice of a layer's neurons that the dropout works on; 0 if layers are not sliced.
    pub slice: u64,
}

impl Dropout {
    /// Random bits per dropout decision: one random word serves four decisions, and a step of 1/65536 is fine enough.
    pub(crate) const BITS: u32 = 16;

    /// Returns the key of a dropout's random decisions in a step, different for each operation and slice.
    pub(crate) fn key(&self, step_key: u64) -> u64 {
        step_key ^ self.place << 56 ^ self.slice << 48
    }

    /// Returns the bound below which the random bits of a dropout decision drop the number.
    pub(crate) fn border(&self) -> u32 {
        (self.probability * f64::from(1u32 << Self::BITS)).round() as u32
    }

    /// Returns the factor by which dropout multiplies the numbers that it does not drop, so that the mean stays the
    /// same.
    pub(crate) fn kept(&self) -> f32 {
        (1.0 / (1.0 - self.probability)) as f32
    }
}

/// Dimensions of an activation: planes of numbers per sample. A row is one plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    /// Number of planes (channels) per sample.
    pub channels: usize,
    /// Number of values in a plane (one channel of one sample).
    pub plane: usize,
}

impl Planes {
    fn rows(features: usize) -> Self {
        Self {
            channels: 1,
            plane: features,
        }
    }

    /// Returns the number of values per sample: those of all planes.
    pub(crate) fn numbers(self) -> usize {
        self.channels * self.plane
    }

    fn of(shape: Shape) -> Self {
        let (channels, height, width) = image(shape);
        Self {
            channels,
            plane: height * width,
        }
    }
}

/// Order in which a device stores the images of a minibatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageOrder {
    /// Images are stored by sample, then by channel: every minibatch consists of rows already.
    BySample,
    /// Images are stored by channel, then by sample: a convolution is one matrix product for the whole minibatch. Dense
    /// layers and the loss read rows, so images are converted before them.
    ByChannel,
}

impl Op {
    /// Returns the numbers per sample in the operation's output, given those in its input.
    #[must_use]
    pub fn outputs(&self, inputs: usize) -> usize {
        match self {
            Self::Dense(dense) => dense.outputs,
            Self::Conv(conv) => conv.geometry.output_len(),
            Self::MaxPool(pool) | Self::MeanPool(pool) => pool.output_len(),
            Self::Residual(block) => outputs(&block.body, inputs),
            Self::Activation(_) | Self::Norm(_) | Self::Dropout(_) | Self::ToRows(_) | Self::FromRows(_) => inputs,
        }
    }

    /// True if the operation has weights to train.
    #[must_use]
    pub fn has_weights(&self) -> bool {
        match self {
            Self::Dense(_) | Self::Conv(_) | Self::Norm(_) => true,
            Self::Residual(block) => block.body.iter().chain(&block.skip).any(Self::has_weights),
            _ => false,
        }
    }

    /// Returns the planes of the operation's output, given those of its input.
    fn planes(&self, before: Planes) -> Planes {
        match self {
            Self::Dense(dense) => Planes::rows(dense.outputs),
            Self::Conv(conv) => Planes {
                channels: conv.geometry.outputs,
                plane: conv.geometry.positions(),
            },
            Self::MaxPool(pool) | Self::MeanPool(pool) => Planes {
                channels: pool.channels,
                plane: pool.rows() * pool.columns(),
            },
            Self::ToRows(planes) => Planes::rows(planes.numbers()),
            Self::FromRows(planes) => *planes,
            Self::Residual(block) => block.body.iter().fold(before, |planes, op| op.planes(planes)),
            Self::Activation(_) | Self::Norm(_) | Self::Dropout(_) => before,
        }
    }
}

/// Returns the numbers per sample after a sequence of operations, given those before it.
fn outputs(ops: &[Op], inputs: usize) -> usize {
    ops.iter().fold(inputs, |inputs, op| op.outputs(inputs))
}

/// The operations of a model, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub ops: Vec<Op>,
    /// Planes (channels) of the samples that the first operation reads, as the device must store them.
    pub input: Planes,
}

impl Program {
    /// Converts a model's layout to operations for a device that stores images in this order.
    #[must_use]
    pub fn new(layout: &Layout, order: ImageOrder) -> Self {
        Self::of(&layout.layers, lowered(layout), order)
    }

    /// Converts this worker's slice of a layer range (consecutive layers of a pipeline stage) to operations. Their
    /// input and output are rows on every device, because neighbouring ranges may be on other nodes. A dropout gets the
    /// same random key wherever the model is cut into stages, but a different one in each slice.
    #[must_use]
    pub fn of_layer_range(partition: &Partition, stage: &PipelineStage, own: &StageSlice, order: ImageOrder) -> Self {
        let layers = &stage.layout.layers[own.layers.clone()];
        let slice = stage.number - partition.layer_ranges()[own.number].owners().start;
        let mut ops = lowered_after(&partition.whole().layers[..own.before], layers);
        let divided = ops.iter_mut().skip_while(|op| !op.has_weights());
        for op in divided {
            if let Op::Dropout(dropout) = op {
                dropout.slice = slice as u64;
            }
        }
        let Self { mut ops, input } = Self::of(layers, ops, order);
        // With one channel, an image has the same order as a row.
        if input.channels > 1 {
            ops.insert(0, Op::FromRows(input));
        }
        Self {
            ops,
            input: Planes::rows(input.numbers()),
        }
    }

    fn of(layers: &[PlacedLayer], ops: Vec<Op>, order: ImageOrder) -> Self {
        let shape = layers.first().map_or(Shape::Flat(0), |placed| placed.input);
        // Samples are stored as rows. A first operation that reads rows takes them as they are, whatever the order.
        let input = match (order, ops.first()) {
            (ImageOrder::BySample, _) | (_, None | Some(Op::Dense(_))) => Planes::rows(shape.elements()),
            (ImageOrder::ByChannel, Some(_)) => Planes::of(shape),
        };
        match order {
            ImageOrder::BySample => Self { ops, input },
            ImageOrder::ByChannel => Self {
                ops: with_turns_to_rows(ops, input),
                input,
            },
        }
    }

    /// Returns the operations for evaluation: the same without dropout.
    #[must_use]
    pub fn for_evaluation(mut self) -> Self {
        drop_nothing(&mut self.ops);
        self
    }

    /// Returns the indices of all weights of the operations, which are contiguous.
    #[must_use]
    pub fn weights(&self) -> Range<usize> {
        weights(&self.ops).unwrap_or_default()
    }

    /// Returns the index of the first operation with weights; gradients are not needed before it.
    #[must_use]
    pub fn first_with_weights(&self) -> usize {
        let found = self.ops.iter().position(Op::has_weights);
        found.unwrap_or(self.ops.len())
    }
}

/// Returns the indices from the first weight of operations to the last one; `None` if they have no weights.
fn weights(ops: &[Op]) -> Option<Range<usize>> {
    let together = |a: Range<usize>, b: Range<usize>| a.start.min(b.start)..a.end.max(b.end);
    let of = |op: &Op| {
        let (weight, bias) = match op {
            Op::Dense(dense) => (dense.weight.clone(), dense.bias.clone()),
            Op::Conv(conv) => (conv.weight.clone(), conv.bias.clone()),
            Op::Norm(norm) => (norm.gain.clone(), norm.bias.clone()),
            Op::Residual(block) => {
                let ways = [weights(&block.body), weights(&block.skip)];
                return ways.into_iter().flatten().reduce(together);
            }
            _ => return None,
        };
        // A convolution may have no bias.
        Some(if bias.is_empty() {
            weight
        } else {
            together(weight, bias)
        })
    };
    ops.iter().filter_map(of).reduce(together)
}

fn drop_nothing(ops: &mut Vec<Op>) {
    ops.retain(|op| !matches!(op, Op::Dropout(_)));
    for op in ops {
        if let Op::Residual(block) = op {
            drop_nothing(&mut block.body);
            drop_nothing(&mut block.skip);
        }
    }
}

#[cfg(test)]
mod tests;
