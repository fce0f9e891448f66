//! A network on some device: the layers of a program in a chain, with residual blocks whose two paths run one after the
//! other.

use dfdx::prelude::*;

use crate::model::tape::{Activations, Failure, Layer, OpError, Operation, carry_out, join, part};

/// The layers of a model, in order, without weights.
#[derive(Clone)]
pub struct Network<L: Layer> {
    parts: Vec<NetworkNode<L>>,
    /// Index of the first node (layer or block) with weights. Nodes before it are not taped, because their gradients
    /// are not needed.
    first_with_weights: usize,
}

/// A node of a network: a layer or a residual block.
#[derive(Clone)]
pub enum NetworkNode<L: Layer> {
    Layer(L),
    /// A residual block: the sum of the outputs of two paths.
    Block {
        /// Layers of the block's main path.
        body: Vec<NetworkNode<L>>,
        /// Layers of the block's skip path.
        skip: Vec<NetworkNode<L>>,
        /// Operations that give the block's input to both paths and add the paths' outputs.
        junction: L::Junction,
    },
}

/// A minibatch after its forward pass, ready for the backward pass.
pub struct ForwardPass<L: Layer> {
    /// Input of the network; the backward pass leaves the input's gradient among the gradients.
    pub inputs: Activations<L::Unit>,
    /// Output of the network, with the tape (the record of all operations) that the backward pass runs.
    pub outputs: Activations<L::Unit, OwnedTape<L::Unit, Cpu>>,
    failure: Failure<L::Error>,
}

impl<L: Layer> ForwardPass<L> {
    /// Runs the backward pass, starting from `end`: a loss, or output gradients from the next pipeline stage.
    pub fn backward<O>(self, end: &O, pass: &L::Pass) -> Result<Descent<L::Unit>, L::Error>
    where
        O: Operation<(), Unit = L::Unit, Pass = L::Pass, Error = L::Error>,
    {
        let Self { outputs, failure, .. } = self;
        let back = || -> Result<_, OpError> {
            let (loss, tape) = carry_out(end, pass, outputs, &failure)?.split_tape();
            let gradients = loss.clone().put_tape(tape).try_backward()?;
            Ok(Descent { loss, gradients })
        };
        back().map_err(|error| failure.behind(error))
    }
}

/// The loss of a minibatch, and the gradients that the tape has written.
pub struct Descent<E: Unit> {
    /// Mean loss of the minibatch.
    pub loss: Tensor<(), E, Cpu>,
    /// Gradients of all tensors that the tape recorded.
    pub gradients: Gradients<E, Cpu>,
}

impl<L: Layer> Network<L> {
    /// Makes a network of layers and blocks (`parts`), in order.
    #[must_use]
    pub fn new(parts: Vec<NetworkNode<L>>, first_with_weights: usize) -> Self {
        Self {
            parts,
            first_with_weights,
        }
    }

    /// Makes a network with the same structure, whose layers and residual blocks are made from those of this one.
    pub fn mapped<E>(
        &self,
        layer: &impl Fn(&L) -> Result<L, E>,
        junction: &impl Fn(&L::Junction) -> Result<L::Junction, E>,
    ) -> Result<Self, E> {
        Ok(Self {
            parts: mapped(&self.parts, layer, junction)?,
            first_with_weights: self.first_with_weights,
        })
    }

    /// Computes the logits of a minibatch, without recording a backward pass.
    pub fn forward(&self, pass: &L::Pass, x: Activations<L::Unit>) -> Result<Activations<L::Unit>, L::Error> {
        let failure = Failure::default();
        self.apply(pass, x, &failure).map_err(|error| failure.behind(error))
    }

    /// Computes the loss of a minibatch and its gradient: forward pass, and backward pass by dfdx's tape.
    pub fn descend<O>(
        &self,
        loss: &O,
        pass: &L::Pass,
        x: Activations<L::Unit>,
        gradients: Gradients<L::Unit, Cpu>,
    ) -> Result<Descent<L::Unit>, L::Error>
    where
        O: Operation<(), Unit = L::Unit, Pass = L::Pass, Error = L::Error>,
    {
        self.forward_taped(pass, x, gradients)?.backward(loss, pass)
    }

    /// Runs the forward pass and records it on the tape for a backward pass.
    pub fn forward_taped(
        &self,
        pass: &L::Pass,
        x: Activations<L::Unit>,
        gradients: Gradients<L::Unit, Cpu>,
    ) -> Result<ForwardPass<L>, L::Error> {
        let failure = Failure::default();
        let outputs = self.apply(pass, x.clone().traced(gradients), &failure);
        Ok(ForwardPass {
            inputs: x,
            outputs: outputs.map_err(|error| failure.behind(error))?,
            failure,
        })
    }

    pub(crate) fn apply<T: Tape<L::Unit, Cpu>>(
        &self,
        pass: &L::Pass,
        x: Activations<L::Unit, T>,
        failure: &Failure<L::Error>,
    ) -> Result<Activations<L::Unit, T>, OpError> {
        let (untrained, trained) = self.parts.split_at(self.first_with_weights.min(self.parts.len()));
        let (input, tape) = x.split_tape();
        let input = through(untrained, pass, input, failure)?;
        through(trained, pass, input.put_tape(tape), failure)
    }
}

fn mapped<L: Layer, E>(
    parts: &[NetworkNode<L>],
    layer: &impl Fn(&L) -> Result<L, E>,
    junction: &impl Fn(&L::Junction) -> Result<L::Junction, E>,
) -> Result<Vec<NetworkNode<L>>, E> {
    let part = |part: &NetworkNode<L>| {
        Ok(match part {
            NetworkNode::Layer(one) => NetworkNode::Layer(layer(one)?),
            NetworkNode::Block {
                body,
                skip,
                junction: one,
            } => NetworkNode::Block {
                body: mapped(body, layer, junction)?,
                skip: mapped(skip, layer, junction)?,
                junction: junction(one)?,
            },
        })
    };
    parts.iter().map(part).collect()
}

/// Runs a minibatch through layers and residual blocks, one after the other.
fn through<L: Layer, T: Tape<L::Unit, Cpu>>(
    parts: &[NetworkNode<L>],
    pass: &L::Pass,
    mut x: Activations<L::Unit, T>,
    failure: &Failure<L::Error>,
) -> Result<Activations<L::Unit, T>, OpError> {
    for one in parts {
        x = match one {
            NetworkNode::Layer(layer) => carry_out(layer, pass, x, failure)?,
            NetworkNode::Block { body, skip, junction } => {
                let ([one, other], tape) = part(junction, pass, x, failure)?;
                // Both paths share one tape, one after the other, so that the backward pass covers both.
                let (one, tape) = through(body, pass, one.put_tape(tape), failure)?.split_tape();
                let (other, tape) = through(skip, pass, other.put_tape(tape), failure)?.split_tape();
                join(junction, pass, [one, other], tape, failure)?
            }
        };
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use protocol::job::model::{Layout, Shape};

    use crate::dataset::Answers;
    use crate::machine::parallel::Threads;
    use crate::model::ops::{MeanLoss, Parameters, Pass, Statistics, from_rows, network, values};
    use crate::model::program::{ImageOrder, Program};
    use crate::task::objective::Objective;

    use super::*;

    fn layout(text: &str, input: Shape, classes: usize) -> Layout {
        Layout::new(&text.parse().unwrap(), input, classes).unwrap()
    }

    fn initial_parameters(layout: &Layout) -> Parameters {
        let counts = protocol::job::model::initial_counts(layout, 1);
        let weights = counts.into_iter().map(protocol::weights::lattice::weight_of).collect();
        Parameters::new(&Cpu::default(), weights).unwrap()
    }

    #[test]
    fn every_layer_trains() {
        // Most layers of the grammar in one model; a few steps of plain gradient descent on one minibatch must lower its
        // loss.
        let shape = Shape::Image {
            channels: 2,
            height: 9,
            width: 9,
        };
        let text = "sigmoid, conv 3 3x3 stride 2 pad 1, batchnorm, tanh, avgpool 2, residual [ conv 4 1x1 nobias, groupnorm 2, silu ], conv 4 2x2, gelu, maxpool 1, flatten, dense 6, layernorm, sigmoid, dropout 0.1, dense 5, leakyrelu, dense";
        let layout = layout(text, shape, 3);
        let device = Cpu::default();
        let mut pass = Pass::new(initial_parameters(&layout), 0, Statistics::Minibatch);
        let network = network(Program::new(&layout, ImageOrder::BySample), Threads(1));
        let loss = MeanLoss {
            objective: Objective::Classes {
                smoothing: 0.0,
                weights: None,
            },
            answers: Answers::Labels(vec![0, 1, 2, 0]),
        };
        let random = protocol::rng::CounterRng::new(4, 4);
        let x: Vec<f32> = (0..4 * 162)
            .map(|at| 4.0 * ((random.at(at) >> 40) as f32 / 2f32.powi(23) - 1.0))
            .collect();
        let mut losses = Vec::new();
        let mut gradient = vec![0.0; layout.weights];
        for step in 0..600 {
            let input = from_rows(&device, 4, 162, x.clone()).unwrap();
            pass.key = step;
            let lent = pass.parameters.lend_gradient(gradient).unwrap();
            let descent = network.descend(&loss, &pass, input, lent).unwrap();
            losses.push(values(&descent.loss)[0]);
            gradient = pass.parameters.take_gradient(descent.gradients).unwrap();
            for (weight, gradient) in pass.parameters.values_mut().iter_mut().zip(&gradient) {
                *weight -= 0.5 * gradient;
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
        let pass = Pass::new(initial_parameters(&layout), 0, Statistics::Minibatch);
        let gradient = |threads| {
            let x = (0..5 * 128).map(|i| (i % 13) as f32 / 13.0).collect();
            let x = from_rows(&Cpu::default(), 5, 128, x).unwrap();
            let lent = pass.parameters.lend_gradient(vec![f32::NAN; layout.weights]).unwrap();
            let network = network(Program::new(&layout, ImageOrder::BySample), Threads(threads));
            let loss = MeanLoss {
                objective: Objective::Classes {
                    smoothing: 0.0,
                    weights: None,
                },
                answers: Answers::Labels(vec![0, 1, 2, 1, 0]),
            };
            let descent = network.descend(&loss, &pass, x, lent).unwrap();
            pass.parameters.take_gradient(descent.gradients).unwrap()
        };
        for (one, three) in gradient(1).iter().zip(gradient(3)) {
            assert!((one - three).abs() < 1e-5);
        }
    }
}
