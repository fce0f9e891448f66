//! Lowers the layers of a layout to operations.

use protocol::job::model::{Activation, Layer, Layout, PlacedLayer, Shape};

use super::norm::{Norm, Sets};
use super::{Conv, Dense, Dropout, Geometry, InputGradient, Op, Planes, Pool, Residual};

pub(super) fn image(shape: Shape) -> (usize, usize, usize) {
    match shape {
        Shape::Image {
            channels,
            height,
            width,
        } => (channels, height, width),
        Shape::Flat(features) => (1, 1, features),
    }
}

/// Converts a model's layers to one operation each, without layers that are fused or change nothing.
pub(super) fn lowered(layout: &Layout) -> Vec<Op> {
    lowered_after(&[], &layout.layers)
}

/// Converts `layers` to operations. The layers `before` belong to earlier pipeline stages and are only counted, so that
/// operations get the same numbers as in the whole model.
pub(super) fn lowered_after(before: &[PlacedLayer], layers: &[PlacedLayer]) -> Vec<Op> {
    let mut lowering = Lowering {
        input_gradient: InputGradient::NotNeeded,
        places: 0,
    };
    lowering.chain(before);
    lowering.chain(layers)
}

/// State while layers are converted to operations, in order.
struct Lowering {
    input_gradient: InputGradient,
    /// Number of operations made so far, including those within residual blocks. A dropout stores it as its own number,
    /// so that its random decisions differ from those of other dropouts.
    places: u64,
}

impl Lowering {
    fn chain(&mut self, layers: &[PlacedLayer]) -> Vec<Op> {
        let mut ops: Vec<Op> = Vec::new();
        for placed in layers {
            if placed.layer == Layer::Activation(Activation::Relu) {
                if let Some(
                    Op::Dense(Dense { relu, .. })
                    | Op::Conv(Conv { relu, .. })
                    | Op::Norm(Norm { relu, .. })
                    | Op::Residual(Residual { relu, .. }),
                ) = ops.last_mut()
                {
                    *relu = true;
                } else {
                    ops.push(Op::Activation(Activation::Relu));
                    self.places += 1;
                }
                continue;
            }
            let Some(op) = self.op(placed) else { continue };
            if op.has_weights() {
                self.input_gradient = InputGradient::Needed;
            }
            ops.push(op);
            self.places += 1;
        }
        ops
    }

    /// Returns the operation of one layer, or `None` if the layer changes nothing.
    fn op(&mut self, placed: &PlacedLayer) -> Option<Op> {
        let (channels, height, width) = image(placed.input);
        let window = |window| Pool {
            channels,
            height,
            width,
            window,
        };
        Some(match placed.layer {
            Layer::Dense(_) => {
                let (weight, bias) = placed.parameters.clone()?;
                Op::Dense(Dense {
                    inputs: placed.input.elements(),
                    outputs: placed.output.elements(),
                    weight,
                    bias,
                    relu: false,
                    input_gradient: self.input_gradient,
                })
            }
            Layer::Conv {
                out,
                kernel,
                stride,
                pad,
                bias: _,
            } => {
                let (weight, bias) = placed.parameters.clone()?;
                Op::Conv(Conv {
                    geometry: Geometry {
                        channels,
                        height,
                        width,
                        outputs: out,
                        kernel,
                        stride,
                        pad,
                    },
                    weight,
                    bias,
                    relu: false,
                    input_gradient: self.input_gradient,
                })
            }
            Layer::BatchNorm => Op::Norm(norm(placed, Sets::Channels)?),
            Layer::LayerNorm => Op::Norm(norm(placed, Sets::Samples)?),
            Layer::GroupNorm(groups) => Op::Norm(norm(placed, Sets::Groups(groups))?),
            Layer::Residual(_) => {
                let block = placed.block.as_ref()?;
                // In a block, both paths pass a gradient to the fork, whether it is needed or not.
                self.input_gradient = InputGradient::Needed;
                Op::Residual(Residual {
                    body: self.chain(&block.body),
                    skip: self.chain(&block.skip),
                    flat: matches!(placed.input, Shape::Flat(_)),
                    relu: false,
                })
            }
            Layer::MaxPool(size) => Op::MaxPool(window((size, size))),
            Layer::AvgPool(size) => Op::MeanPool(window((size, size))),
            Layer::GlobalAvgPool => Op::MeanPool(window((height, width))),
            Layer::Activation(activation) => Op::Activation(activation),
            Layer::Dropout(probability) => Op::Dropout(Dropout {
                probability,
                place: self.places,
                slice: 0,
            }),
            // Activations are flat already.
            Layer::Flatten => return None,
        })
    }
}

/// Returns the operation of a norm layer that normalises these sets of numbers; `None` only for a layer without
/// weights, which no layout contains.
fn norm(placed: &PlacedLayer, sets: Sets) -> Option<Norm> {
    let (gain, bias) = placed.parameters.clone()?;
    let (channels, plane, flat) = match placed.input {
        Shape::Flat(features) => (features, 1, true),
        Shape::Image {
            channels,
            height,
            width,
        } => (channels, height * width, false),
    };
    Some(Norm {
        sets,
        channels,
        plane,
        flat,
        gain,
        bias,
        statistics: placed.statistics.clone(),
        relu: false,
    })
}

/// Inserts conversions of images to rows before operations that read vectors, and before the loss.
pub(super) fn with_turns_to_rows(ops: Vec<Op>, input: Planes) -> Vec<Op> {
    let (mut turned, planes) = turned(ops, input);
    if planes.channels > 1 {
        turned.push(Op::ToRows(planes));
    }
    turned
}

/// Inserts conversions of images to rows before operations that read rows. Returns all operations, and the planes of
/// the last one's output.
fn turned(ops: Vec<Op>, input: Planes) -> (Vec<Op>, Planes) {
    let mut result = Vec::with_capacity(ops.len() + 1);
    let mut planes = input;
    for mut op in ops {
        let reads_rows = match &op {
            Op::Dense(_) => true,
            Op::Norm(norm) => norm.flat,
            Op::Residual(block) => block.flat,
            _ => false,
        };
        // With one channel, an image has the same order as a row.
        if reads_rows && planes.channels > 1 {
            result.push(Op::ToRows(planes));
            planes = Planes::rows(planes.numbers());
        }
        let before = planes;
        planes = op.planes(before);
        if let Op::Residual(block) = &mut op {
            block.body = turned(std::mem::take(&mut block.body), before).0;
            block.skip = turned(std::mem::take(&mut block.skip), before).0;
        }
        result.push(op);
    }
    (result, planes)
}
