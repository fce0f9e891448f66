//! A model on dfdx: the layers of a job as a chain of operations over the flat weights.

use dfdx::prelude::*;
use protocol::model::Layout;

use crate::ops::{Activations, OpError, Parameters, Threads, dropout::dropout, gelu::gelu};
use crate::program::{Activation, ImageOrder, Op, Program};

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

impl Network {
    /// The network of a layout.
    #[must_use]
    pub fn new(layout: &Layout, threads: Threads) -> Self {
        let Program { ops, .. } = Program::new(layout, ImageOrder::BySample);
        Self { ops, threads }
    }

    /// The logits of a minibatch.
    pub fn forward<T: Tape<f32, Cpu>>(
        &self,
        parameters: &Parameters,
        mut x: Activations<T>,
        mode: Mode,
    ) -> Result<Activations<T>, OpError> {
        for op in &self.ops {
            x = match (op, mode) {
                (Op::Dense(dense), _) => dense.forward(parameters, x, self.threads)?,
                (Op::Conv(conv), _) => conv.forward(parameters, x, self.threads)?,
                (Op::MaxPool(pool), _) => pool.max(x)?,
                (Op::MeanPool(pool), _) => pool.mean(x)?,
                (Op::Activation(Activation::Relu), _) => x.try_relu()?,
                (Op::Activation(Activation::Tanh), _) => x.try_tanh()?,
                (Op::Activation(Activation::Sigmoid), _) => x.try_sigmoid()?,
                (Op::Activation(Activation::Gelu), _) => gelu(x)?,
                (Op::Dropout(op), Mode::Training { key }) => dropout(x, *op, key)?,
                // Activations are rows already.
                (Op::Dropout(_), Mode::Evaluation) | (Op::ToRows(_), _) => x,
            };
        }
        Ok(x)
    }
}

#[cfg(test)]
mod tests {
    use protocol::model::Shape;

    use super::*;
    use crate::ops::{from_rows, loss, values};

    fn layout(text: &str, input: Shape, classes: usize) -> Layout {
        Layout::new(&text.parse().unwrap(), input, classes).unwrap()
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
