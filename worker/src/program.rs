//! What a model computes, as a list of operations: the layers of a job, with each relu fused into the layer before it
//! where that can be. Plain descriptions, without numbers and without a device: every device carries out the same list.

use std::ops::Range;

use protocol::model::{Layer, Layout, PlacedLayer, Shape};

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
    /// Numbers dropped at random.
    Dropout(Dropout),
    /// Images that lie channel by channel become rows, one per sample.
    ToRows(Planes),
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
    /// Its biases.
    pub bias: Range<usize>,
    /// Whether relu follows.
    pub relu: bool,
    /// Whether something trainable lies before it.
    pub input_gradient: InputGradient,
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

/// A pooling layer: squares of `size` rows and columns, side by side; what is left at the edges is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Planes per sample.
    pub channels: usize,
    /// Rows of a plane before it.
    pub height: usize,
    /// Columns of a plane before it.
    pub width: usize,
    /// Rows and columns of a square.
    pub size: usize,
}

impl Pool {
    pub(crate) fn rows(&self) -> usize {
        self.height / self.size
    }

    pub(crate) fn columns(&self) -> usize {
        self.width / self.size
    }

    pub(crate) fn output_len(&self) -> usize {
        self.channels * self.rows() * self.columns()
    }
}

/// A function of each number by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Cut at zero, where it could not be fused.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e⁻ˣ)`
    Sigmoid,
    /// `x Φ(x)`, exactly.
    Gelu,
}

/// Dropout: in training each number is dropped with a probability and the others are scaled up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The share of numbers that is dropped.
    pub probability: f64,
    /// The number of this operation in the model, which makes its key its own.
    pub place: u64,
}

impl Dropout {
    /// Random bits per decision: four decisions come from one random word, and 1/65536 is fine enough for a probability.
    pub(crate) const BITS: u32 = 16;

    /// The key of this operation in a step: layers of one step must not drop in the same pattern.
    pub(crate) fn key(&self, step_key: u64) -> u64 {
        step_key ^ self.place << 56
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
            Self::Activation(_) | Self::Dropout(_) | Self::ToRows(_) => inputs,
        }
    }

    /// Whether there is something to train in it.
    #[must_use]
    pub fn has_weights(&self) -> bool {
        matches!(self, Self::Dense(_) | Self::Conv(_))
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
            Self::ToRows(planes) => Planes::rows(planes.channels * planes.plane),
            Self::Activation(_) | Self::Dropout(_) => before,
        }
    }
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
        let ops = lowered(layout);
        let shape = layout.layers.first().map_or(Shape::Flat(0), |placed| placed.input);
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
        self.ops.retain(|op| !matches!(op, Op::Dropout(_)));
        self
    }

    /// The first operation that a gradient must come back to: there is nothing to train before it.
    #[must_use]
    pub fn first_with_weights(&self) -> usize {
        let found = self.ops.iter().position(Op::has_weights);
        found.unwrap_or(self.ops.len())
    }
}

fn image(shape: Shape) -> (usize, usize, usize) {
    match shape {
        Shape::Image {
            channels,
            height,
            width,
        } => (channels, height, width),
        Shape::Flat(features) => (1, 1, features),
    }
}

/// One operation per layer, less those that are fused or change nothing.
fn lowered(layout: &Layout) -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    let mut input_gradient = InputGradient::NotNeeded;
    for placed in &layout.layers {
        match (placed.layer, placed.parameters.clone()) {
            (Layer::Dense(outputs), Some((weight, bias))) => {
                ops.push(Op::Dense(Dense {
                    inputs: placed.input.elements(),
                    outputs,
                    weight,
                    bias,
                    relu: false,
                    input_gradient,
                }));
                input_gradient = InputGradient::Needed;
            }
            (
                Layer::Conv {
                    out,
                    kernel,
                    stride,
                    pad,
                },
                Some((weight, bias)),
            ) => {
                let (channels, height, width) = image(placed.input);
                let geometry = Geometry {
                    channels,
                    height,
                    width,
                    outputs: out,
                    kernel,
                    stride,
                    pad,
                };
                ops.push(Op::Conv(Conv {
                    geometry,
                    weight,
                    bias,
                    relu: false,
                    input_gradient,
                }));
                input_gradient = InputGradient::Needed;
            }
            (Layer::Relu, _) => match ops.last_mut() {
                Some(Op::Dense(Dense { relu, .. }) | Op::Conv(Conv { relu, .. })) => *relu = true,
                _ => ops.push(Op::Activation(Activation::Relu)),
            },
            (Layer::MaxPool(size), _) => ops.push(Op::MaxPool(pool(placed, size))),
            (Layer::AvgPool(size), _) => ops.push(Op::MeanPool(pool(placed, size))),
            (Layer::Tanh, _) => ops.push(Op::Activation(Activation::Tanh)),
            (Layer::Sigmoid, _) => ops.push(Op::Activation(Activation::Sigmoid)),
            (Layer::Gelu, _) => ops.push(Op::Activation(Activation::Gelu)),
            (Layer::Dropout(probability), _) => ops.push(Op::Dropout(Dropout {
                probability,
                place: ops.len() as u64,
            })),
            // What is flat already stays as it is. A layer with weights always has its place in the layout.
            (Layer::Flatten | Layer::Dense(_) | Layer::Conv { .. }, _) => {}
        }
    }
    ops
}

fn pool(placed: &PlacedLayer, size: usize) -> Pool {
    let (channels, height, width) = image(placed.input);
    Pool {
        channels,
        height,
        width,
        size,
    }
}

/// The same operations, with images turned to rows before every dense layer that follows them, and before the loss.
fn with_turns_to_rows(ops: Vec<Op>, input: Planes) -> Vec<Op> {
    let mut turned = Vec::with_capacity(ops.len() + 1);
    let mut planes = input;
    for op in ops {
        // One channel lies like rows.
        if matches!(op, Op::Dense(_)) && planes.channels > 1 {
            turned.push(Op::ToRows(planes));
        }
        planes = op.planes(planes);
        turned.push(op);
    }
    if planes.channels > 1 {
        turned.push(Op::ToRows(planes));
    }
    turned
}

#[cfg(test)]
mod tests;
