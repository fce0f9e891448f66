//! From layers to operations.

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

/// One operation per layer, less those that are fused or change nothing.
pub(super) fn lowered(layout: &Layout) -> Vec<Op> {
    lowered_after(&[], &layout.layers)
}

/// The same for layers that come after others, which lie elsewhere.
pub(super) fn lowered_after(before: &[PlacedLayer], layers: &[PlacedLayer]) -> Vec<Op> {
    let mut lowering = Lowering {
        input_gradient: InputGradient::NotNeeded,
        places: 0,
    };
    lowering.chain(before);
    lowering.chain(layers)
}

/// What is known on the way through the layers.
struct Lowering {
    input_gradient: InputGradient,
    /// Operations so far, those within blocks included.
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

    /// The operation of one layer, if it is one.
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
                // Both ways hand a gradient to where they part, whoever needs it.
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
            // What is flat already stays as it is.
            Layer::Flatten => return None,
        })
    }
}

/// The operation of a norm layer, which shifts and scales what it has normalised. The layout always places its weights.
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

/// The same operations, with images turned to rows before all that reads vectors, and before the loss.
pub(super) fn with_turns_to_rows(ops: Vec<Op>, input: Planes) -> Vec<Op> {
    let (mut turned, planes) = turned(ops, input);
    if planes.channels > 1 {
        turned.push(Op::ToRows(planes));
    }
    turned
}

/// Operations with their turns, and what they end in.
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
        // One channel lies like rows.
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
