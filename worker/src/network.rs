//! A model on dfdx: the layers of a job as a chain of operations over the flat weights.

use dfdx::prelude::*;
use protocol::model::{Layer, Layout, Shape};

use crate::ops::conv::{Conv, Geometry};
use crate::ops::dense::Dense;
use crate::ops::pool::Pool;
use crate::ops::{Activations, InputGradient, OpError, Parameters, Threads, dropout::dropout, gelu::gelu};

/// One operation of the chain.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Dense(Dense),
    Conv(Conv),
    MaxPool(Pool),
    AvgPool(Pool),
    Relu,
    Tanh,
    Sigmoid,
    Gelu,
    Dropout(f64),
}

/// The chain of operations of a model. Holds no weights.
#[derive(Clone, Debug)]
pub struct Network {
    ops: Vec<Op>,
    threads: Threads,
}

/// Whether dropout drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It does, by decisions drawn from this key.
    Training {
        /// Different for every step.
        key: u64,
    },
    /// It does not.
    Evaluation,
}

fn image(shape: Shape) -> (usize, usize, usize) {
    match shape {
        Shape::Image {
            channels,
            height,
            width,
        } => (channels, height, width),
        // Shape inference lets only images reach a layer that needs one.
        Shape::Flat(features) => (1, 1, features),
    }
}

impl Network {
    /// Turns a layout into operations, with each relu fused into the layer before it where that can be.
    #[must_use]
    pub fn new(layout: &Layout, threads: Threads) -> Self {
        let mut ops: Vec<Op> = Vec::new();
        let mut input_gradient = InputGradient::NotNeeded;
        for placed in &layout.layers {
            let pool = |size| {
                let (channels, height, width) = image(placed.input);
                Pool {
                    channels,
                    height,
                    width,
                    size,
                }
            };
            match (placed.layer, placed.parameters.clone()) {
                (Layer::Dense(outputs), Some((weight, bias))) => {
                    let inputs = placed.input.elements();
                    let relu = false;
                    ops.push(Op::Dense(Dense {
                        inputs,
                        outputs,
                        weight,
                        bias,
                        relu,
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
                    Some(Op::Dense(Dense { relu, .. }) | Op::Conv(Conv { relu, .. })) => {
                        *relu = true;
                    }
                    _ => ops.push(Op::Relu),
                },
                (Layer::MaxPool(size), _) => ops.push(Op::MaxPool(pool(size))),
                (Layer::AvgPool(size), _) => ops.push(Op::AvgPool(pool(size))),
                (Layer::Tanh, _) => ops.push(Op::Tanh),
                (Layer::Sigmoid, _) => ops.push(Op::Sigmoid),
                (Layer::Gelu, _) => ops.push(Op::Gelu),
                (Layer::Dropout(probability), _) => ops.push(Op::Dropout(probability)),
                // Activations are rows already. A layer with weights always has its place in the layout.
                (Layer::Flatten | Layer::Dense(_) | Layer::Conv { .. }, _) => {}
            }
        }
        Self { ops, threads }
    }

    /// The operations, in order.
    #[cfg(feature = "cuda")]
    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The logits of a minibatch.
    pub fn forward<T: Tape<f32, Cpu>>(
        &self,
        parameters: &Parameters,
        mut x: Activations<T>,
        mode: Mode,
    ) -> Result<Activations<T>, OpError> {
        for (place, op) in (0u64..).zip(&self.ops) {
            x = match (op, mode) {
                (Op::Dense(dense), _) => dense.forward(parameters, x, self.threads)?,
                (Op::Conv(conv), _) => conv.forward(parameters, x, self.threads)?,
                (Op::MaxPool(pool), _) => pool.max(x)?,
                (Op::AvgPool(pool), _) => pool.mean(x)?,
                (Op::Relu, _) => x.try_relu()?,
                (Op::Tanh, _) => x.try_tanh()?,
                (Op::Sigmoid, _) => x.try_sigmoid()?,
                (Op::Gelu, _) => gelu(x)?,
                // Layers of one step must not drop in the same pattern.
                (Op::Dropout(probability), Mode::Training { key }) => dropout(x, *probability, key ^ place << 56)?,
                (Op::Dropout(_), Mode::Evaluation) => x,
            };
        }
        Ok(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{from_rows, loss, values};

    fn layout(text: &str, input: Shape, classes: usize) -> Layout {
        Layout::new(&text.parse().unwrap(), input, classes).unwrap()
    }

    #[test]
    fn relu_is_fused_only_into_layers_that_can() {
        let shape = Shape::Image {
            channels: 1,
            height: 6,
            width: 6,
        };
        let layout = layout(
            "conv 2 3x3, relu, maxpool 2, relu, flatten, dense 3, relu, relu, dense 2",
            shape,
            2,
        );
        let names: Vec<String> = Network::new(&layout, Threads(1))
            .ops
            .iter()
            .map(|op| match op {
                Op::Conv(conv) => format!("conv {}", conv.relu),
                Op::Dense(dense) => format!("dense {}", dense.relu),
                Op::MaxPool(_) => "maxpool".into(),
                Op::Relu => "relu".into(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(names, ["conv true", "maxpool", "relu", "dense true", "dense false"]);
    }

    #[test]
    fn every_layer_trains() {
        // All layers of the grammar in one model; a few steps of plain descent on one minibatch must lower its loss.
        let shape = Shape::Image {
            channels: 2,
            height: 9,
            width: 9,
        };
        let text = "conv 3 3x3 stride 2 pad 1, tanh, avgpool 2, conv 4 2x2, gelu, maxpool 1, flatten, dense 6, sigmoid, dropout 0.1, dense 5, relu, dense 3";
        let layout = layout(text, shape, 3);
        let counts = protocol::model::initial_counts(&layout, 1);
        let weights = counts.into_iter().map(protocol::lattice::weight_of).collect();
        let device = Cpu::default();
        let mut parameters = Parameters::new(&device, weights).unwrap();
        let network = Network::new(&layout, Threads(1));
        let labels = [0, 1, 2, 0];
        let random = protocol::rng::CounterRng::new(4, 4);
        let x: Vec<f32> = (0..4 * 162)
            .map(|at| (random.at(at) >> 40) as f32 / 2f32.powi(23) - 1.0)
            .collect();
        let mut losses = Vec::new();
        let mut gradient = vec![0.0; layout.weights];
        for step in 0..600 {
            let input = from_rows(&device, 4, 162, x.clone()).unwrap();
            let tape = parameters.lend_gradient(gradient).unwrap();
            let logits = network
                .forward(&parameters, input.traced(tape), Mode::Training { key: step })
                .unwrap();
            let loss = loss::softmax_cross_entropy(logits, &labels).unwrap();
            losses.push(values(&loss)[0]);
            gradient = parameters.take_gradient(loss.backward()).unwrap();
            for (weight, slope) in parameters.values_mut().iter_mut().zip(&gradient) {
                *weight -= 0.5 * slope;
            }
        }
        assert!(losses[599] < losses[0] * 0.5, "{} after {}", losses[599], losses[0]);
    }

    #[test]
    fn threads_do_not_change_what_is_learned() {
        let shape = Shape::Image {
            channels: 2,
            height: 8,
            width: 8,
        };
        let layout = layout("conv 3 3x3, relu, flatten, dense 3", shape, 3);
        let counts = protocol::model::initial_counts(&layout, 1);
        let device = Cpu::default();
        let weights = counts.into_iter().map(protocol::lattice::weight_of).collect();
        let parameters = Parameters::new(&device, weights).unwrap();
        let gradient = |threads| {
            let x = (0..5 * 128).map(|i| (i % 13) as f32 / 13.0).collect();
            let tape = parameters.lend_gradient(vec![f32::NAN; layout.weights]).unwrap();
            let x = from_rows(&device, 5, 128, x).unwrap().traced(tape);
            let logits = Network::new(&layout, Threads(threads))
                .forward(&parameters, x, Mode::Evaluation)
                .unwrap();
            let loss = loss::softmax_cross_entropy(logits, &[0, 1, 2, 1, 0]).unwrap();
            parameters.take_gradient(loss.backward()).unwrap()
        };
        for (one, three) in gradient(1).iter().zip(gradient(3)) {
            assert!((one - three).abs() < 1e-5);
        }
    }
}
