//! What a model computes, as a list of operations: the layers of a job, with each relu fused into the layer before it
//! where that can be. Plain descriptions, without numbers and without a device: every device carries out the same list.

mod lowering;
mod norm;

use std::ops::Range;

use protocol::job::model::{Activation, Layout, Partition, PipelineStage, PlacedLayer, Shape, StageSlice};

use lowering::{image, lowered, lowered_after, with_turns_to_rows};
pub use norm::{Norm, Sets};

/// One operation. It reads a minibatch of activations and writes another one.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `y = x Wᵀ + b`, with relu where it follows.
    Dense(Dense),
    /// A convolution, with relu where it follows.
    Conv(Conv),
    /// The largest number of every square.
    MaxPool(Pool),
    /// The mean of every square.
    MeanPool(Pool),
    /// A function of each number by itself.
    Activation(Activation),
    /// Numbers shifted and scaled, set by set.
    Norm(Norm),
    /// Two ways that come together again.
    Residual(Residual),
    /// Numbers dropped at random.
    Dropout(Dropout),
    /// Images that lie channel by channel become rows, one per sample.
    ToRows(Planes),
    /// Rows become images that lie channel by channel.
    FromRows(Planes),
}

/// A dense layer: where its weights lie and what surrounds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dense {
    /// Numbers per sample before it.
    pub inputs: usize,
    /// Numbers per sample after it.
    pub outputs: usize,
    /// Its weights, `outputs` rows of `inputs`.
    pub weight: Range<usize>,
    /// Its biases.
    pub bias: Range<usize>,
    /// Whether relu follows.
    pub relu: bool,
    /// Whether something trainable lies before it.
    pub input_gradient: InputGradient,
}

/// A convolution layer: where its weights lie and what surrounds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Its sizes.
    pub geometry: Geometry,
    /// Its weights, one kernel after the other.
    pub weight: Range<usize>,
    /// Its biases; none where there are no indices.
    pub bias: Range<usize>,
    /// Whether relu follows.
    pub relu: bool,
    /// Whether something trainable lies before it.
    pub input_gradient: InputGradient,
}

/// A block: what comes in goes two ways, and what comes out of both is added up, with relu where it follows.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// The operations of one way.
    pub body: Vec<Op>,
    /// Those of the other; without any, what comes in is added as it is.
    pub skip: Vec<Op>,
    /// Whether samples come in as vectors: those lie as rows on every device.
    pub flat: bool,
    /// Whether relu follows.
    pub relu: bool,
}

/// Whether an operation must hand a gradient to what came before it. The data needs none, which saves the first layer a
/// third of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputGradient {
    /// Something trainable lies before.
    Needed,
    /// Only data and operations without weights lie before.
    NotNeeded,
}

/// The sizes of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Planes before it.
    pub channels: usize,
    /// Rows of a plane before it.
    pub height: usize,
    /// Columns of a plane before it.
    pub width: usize,
    /// Planes after it.
    pub outputs: usize,
    /// Rows and columns of a kernel.
    pub kernel: usize,
    /// Distance between two positions of a kernel.
    pub stride: usize,
    /// Zeros around a plane.
    pub pad: usize,
}

impl Geometry {
    /// Whether each kernel is one pixel, at every pixel.
    pub(crate) fn is_pointwise(&self) -> bool {
        (self.kernel, self.stride, self.pad) == (1, 1, 0)
    }

    pub(crate) fn rows(&self) -> usize {
        (self.height + 2 * self.pad - self.kernel) / self.stride + 1
    }

    pub(crate) fn columns(&self) -> usize {
        (self.width + 2 * self.pad - self.kernel) / self.stride + 1
    }

    /// Positions of a kernel: numbers in a plane of the output.
    pub(crate) fn positions(&self) -> usize {
        self.rows() * self.columns()
    }

    /// Numbers under a kernel.
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

/// A pooling layer: windows of rows and columns, side by side; what is left at the edges is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Planes per sample.
    pub channels: usize,
    /// Rows of a plane before it.
    pub height: usize,
    /// Columns of a plane before it.
    pub width: usize,
    /// Rows and columns of a window.
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

/// Dropout: in training each number is dropped with a probability and the others are scaled up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The share of numbers that is dropped.
    pub probability: f64,
    /// The number of this operation in the model, which makes its key its own.
    pub place: u64,
    /// Which slice of a layer's neurons it works on, where they are divided.
    pub slice: u64,
}

impl Dropout {
    /// Random bits per decision: four decisions come from one random word, and 1/65536 is fine enough for a probability.
    pub(crate) const BITS: u32 = 16;

    /// The key of this operation in a step: layers of one step must not drop in the same pattern.
    pub(crate) fn key(&self, step_key: u64) -> u64 {
        step_key ^ self.place << 56 ^ self.slice << 48
    }

    /// A number is dropped if the random bits of its decision are below this.
    pub(crate) fn border(&self) -> u32 {
        (self.probability * f64::from(1u32 << Self::BITS)).round() as u32
    }

    /// What is not dropped is multiplied by this, so that the mean stays.
    pub(crate) fn kept(&self) -> f32 {
        (1.0 / (1.0 - self.probability)) as f32
    }
}

/// What an activation consists of: planes of numbers. Rows are one plane per sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    /// Planes per sample.
    pub channels: usize,
    /// Numbers in each.
    pub plane: usize,
}

impl Planes {
    fn rows(features: usize) -> Self {
        Self {
            channels: 1,
            plane: features,
        }
    }

    /// Numbers per sample.
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

/// How a device keeps a minibatch of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageOrder {
    /// Sample by sample, and within a sample channel by channel: every minibatch is rows already.
    BySample,
    /// Channel by channel, and within a channel sample by sample: a convolution is one product for the whole minibatch.
    /// Dense layers and the loss read rows, so images are turned before them.
    ByChannel,
}

impl Op {
    /// Numbers per sample after it, from those before it.
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

    /// Whether there is something to train in it.
    #[must_use]
    pub fn has_weights(&self) -> bool {
        match self {
            Self::Dense(_) | Self::Conv(_) | Self::Norm(_) => true,
            Self::Residual(block) => block.body.iter().chain(&block.skip).any(Self::has_weights),
            _ => false,
        }
    }

    /// The planes after it, from those before it.
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

/// Numbers per sample after operations, from those before them.
fn outputs(ops: &[Op], inputs: usize) -> usize {
    ops.iter().fold(inputs, |inputs, op| op.outputs(inputs))
}

/// The operations of a model, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The operations.
    pub ops: Vec<Op>,
    /// What a device has to read samples as.
    pub input: Planes,
}

impl Program {
    /// The operations of a layout, for a device that keeps images in an order.
    #[must_use]
    pub fn new(layout: &Layout, order: ImageOrder) -> Self {
        Self::of(&layout.layers, lowered(layout), order)
    }

    /// The operations of what a stage has of a layer range. They read and write rows on every device, since what lies before
    /// and after may be elsewhere. They have the same keys wherever a model is cut, but that neurons of different slices are
    /// not dropped together.
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
        // One channel lies like rows.
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

    /// The operations that are carried out where nothing is trained: nothing is dropped there.
    #[must_use]
    pub fn for_evaluation(mut self) -> Self {
        drop_nothing(&mut self.ops);
        self
    }

    /// Where its weights lie, which lie together.
    #[must_use]
    pub fn weights(&self) -> Range<usize> {
        weights(&self.ops).unwrap_or_default()
    }

    /// The first operation that a gradient must come back to: there is nothing to train before it.
    #[must_use]
    pub fn first_with_weights(&self) -> usize {
        let found = self.ops.iter().position(Op::has_weights);
        found.unwrap_or(self.ops.len())
    }
}

/// From the first weight of operations to the last one; none where they have none.
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
