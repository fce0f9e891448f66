//! A model on the device: dfdx's network of its layers, with room for the largest minibatch.

use std::rc::Rc;

use dfdx::prelude::{Gradients, HasShape};

use super::abi::Images;
use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::Gpu;
use super::layers::{ConvRoom, CudaJunction, CudaLayer, PARTS_MAX, Pass, PassData, Statistics};
use super::loss::CudaLoss;
use super::memory::Array;
use super::tensor_address::{TensorAddress, place_of, tensor_at};
use crate::model::network::{Descent, ForwardPass, Network, NetworkNode};
use crate::model::program::{InputGradient, Op, Planes, Program};
use crate::model::tape::{Activations, Parameters};
use crate::task::objective::Objective;

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Gradients come back through it.
    Training,
    /// They do so for parts of minibatches that are under way at the same time, each in a model of its own, and may go on to
    /// what lies before it, elsewhere.
    Passing(InputGradient),
    /// Only logits are asked for.
    Evaluation,
}

/// The layers of a model, the loss, and where a minibatch lies.
pub(super) struct CudaModel {
    gpu: Rc<Gpu>,
    network: Network<CudaLayer>,
    loss: CudaLoss,
    input: Planes,
    x: Array<f32>,
    /// Column sums, in parts.
    sums: Rc<Array<f32>>,
    minibatch: usize,
}

impl CudaModel {
    pub(super) fn new(
        gpu: &Rc<Gpu>,
        program: &Program,
        objective: &Objective,
        minibatch: usize,
        purpose: Purpose,
    ) -> Result<Self, GpuError> {
        let trains = purpose != Purpose::Evaluation;
        let making = Making {
            gpu,
            minibatch,
            trains,
            // What a whole network has unfolded on the forward pass it needs on the way back.
            common: match purpose {
                Purpose::Training => None,
                _ => Some(Rc::new(ConvRoom::of_all(gpu, &program.ops, minibatch, trains)?)),
            },
        };
        // The first layer with weights has nobody to hand a gradient to, unless something lies before; blocks always have,
        // within them.
        let (first, wanted) = match purpose {
            Purpose::Passing(InputGradient::Needed) => (0, InputGradient::Needed),
            _ => (program.first_with_weights(), InputGradient::NotNeeded),
        };
        let features = program.input.numbers();
        let (parts, outputs) = making.parts(&program.ops, features, wanted)?;
        let classes = if trains { outputs } else { 0 };
        Ok(Self {
            network: Network::new(parts, first),
            loss: CudaLoss::new(gpu, objective, minibatch, classes)?,
            input: program.input,
            x: Array::zeros(gpu, minibatch * features)?,
            sums: Rc::new(Array::zeros(gpu, PARTS_MAX * widest(&program.ops))?),
            minibatch,
            gpu: Rc::clone(gpu),
        })
    }

    /// The same for another part of a minibatch at the same time.
    pub(super) fn beside(&self) -> Result<Self, GpuError> {
        let gpu = &*self.gpu;
        Ok(Self {
            network: self
                .network
                .mapped(&|layer: &CudaLayer| layer.beside(gpu), &|junction: &CudaJunction| {
                    junction.beside(gpu)
                })?,
            loss: self.loss.clone(),
            input: self.input,
            x: Array::zeros(gpu, self.x.len())?,
            sums: Rc::clone(&self.sums),
            minibatch: self.minibatch,
            gpu: Rc::clone(&self.gpu),
        })
    }

    /// How a minibatch of so many samples is to lie at [`CudaModel::x`].
    pub(super) fn images(&self, samples: usize) -> Images {
        Images {
            channels: self.input.channels as u32,
            samples: samples as u32,
            plane: self.input.plane as u32,
        }
    }

    /// Where a minibatch is to lie.
    pub(super) fn x(&self) -> DeviceAddress<f32> {
        self.x.at()
    }

    /// How many labels there is room for.
    pub(super) fn labels_max(&self) -> usize {
        self.loss.room().labels.len()
    }

    /// Where its labels are to lie.
    pub(super) fn labels(&self) -> DeviceAddress<u32> {
        self.loss.room().labels.at()
    }

    /// The most samples that there is room for.
    pub(super) fn minibatch(&self) -> usize {
        self.minibatch
    }

    /// Where the gradients at its outputs are to lie, if they come from elsewhere.
    pub(super) fn output_gradients(&self) -> DeviceAddress<f32> {
        self.loss.room().output_gradients.at()
    }

    /// Each sample's loss, once they are computed.
    pub(super) fn losses(&self) -> DeviceAddress<f32> {
        self.loss.room().losses.at()
    }

    fn pass(&self, parameters: &Parameters<TensorAddress>, key: u64, share: f32, statistics: Statistics) -> Pass {
        Pass(Rc::new(PassData {
            gpu: Rc::clone(&self.gpu),
            parameters: parameters.clone(),
            key,
            sums: self.sums.at(),
            statistics,
            share,
        }))
    }

    /// The samples that lie at [`CudaModel::x`].
    fn samples(&self, samples: usize) -> Result<Activations<TensorAddress>, GpuError> {
        Ok(tensor_at(self.x.at(), (samples, self.input.numbers()))?)
    }

    /// Launches forward, loss and backward of the minibatch that lies at [`CudaModel::x`]: writes the whole gradient.
    ///
    /// `gradient` must have room for as many numbers as there are parameters.
    pub(super) fn descend(
        &self,
        parameters: &Parameters<TensorAddress>,
        gradient: DeviceAddress<f32>,
        samples: usize,
        key: u64,
    ) -> Result<(), GpuError> {
        self.descend_part(parameters, gradient, (samples, 1.0), key).map(drop)
    }

    /// The same for a part of a minibatch, which is so much of it. Its samples, and what has come back.
    pub(super) fn descend_part(
        &self,
        parameters: &Parameters<TensorAddress>,
        gradient: DeviceAddress<f32>,
        (samples, share): (usize, f32),
        key: u64,
    ) -> Result<(Activations<TensorAddress>, Descent<TensorAddress>), GpuError> {
        // Smaller minibatches are rare, and not worth finding the fastest products for.
        self.gpu.products.compete(samples == self.minibatch);
        let x = self.samples(samples)?;
        let lent = parameters.lend_gradient(vec![gradient.into()])?;
        let pass = self.pass(parameters, key, share, Statistics::Minibatch);
        let descent = self.network.descend(&self.loss, &pass, x.clone(), lent)?;
        Ok((x, descent))
    }

    /// Launches the forward pass of what lies at [`CudaModel::x`], with a backward pass.
    pub(super) fn forward(
        &self,
        parameters: &Parameters<TensorAddress>,
        samples: usize,
        key: u64,
    ) -> Result<(ForwardPass<CudaLayer>, Pass), GpuError> {
        self.gpu.products.compete(samples == self.minibatch);
        let pass = self.pass(parameters, key, 1.0, Statistics::Minibatch);
        let forward = self
            .network
            .forward_taped(&pass, self.samples(samples)?, Gradients::leaky())?;
        Ok((forward, pass))
    }

    /// Launches the forward pass alone. Where the logits will lie, and how many there are for each sample.
    pub(super) fn logits(
        &self,
        parameters: &Parameters<TensorAddress>,
        samples: usize,
        statistics: Statistics,
    ) -> Result<(DeviceAddress<f32>, usize), GpuError> {
        self.gpu.products.compete(false);
        let pass = self.pass(parameters, 0, 1.0, statistics);
        let logits = self.network.forward(&pass, self.samples(samples)?)?;
        Ok((place_of(&logits), logits.shape().1))
    }
}

/// How layers are made.
struct Making<'a> {
    gpu: &'a Gpu,
    minibatch: usize,
    trains: bool,
    /// Where convolutions unfold, if they do so in one place.
    common: Option<Rc<ConvRoom>>,
}

impl Making<'_> {
    /// Operations as parts of a network, and the numbers per sample after them. The first one hands its input's gradient on
    /// if that is wanted, all others do.
    fn parts(
        &self,
        ops: &[Op],
        mut inputs: usize,
        mut wanted: InputGradient,
    ) -> Result<(Vec<NetworkNode<CudaLayer>>, usize), GpuError> {
        let mut parts = Vec::with_capacity(ops.len());
        for op in ops {
            let outputs = op.outputs(inputs);
            parts.push(match op {
                Op::Residual(block) => NetworkNode::Block {
                    body: self.parts(&block.body, inputs, InputGradient::Needed)?.0,
                    skip: self.parts(&block.skip, inputs, InputGradient::Needed)?.0,
                    junction: CudaJunction::new(self.gpu, block, outputs, self.minibatch, self.trains)?,
                },
                op => {
                    let wanted = if self.trains { wanted } else { InputGradient::NotNeeded };
                    let common = self.common.as_ref();
                    NetworkNode::Layer(CudaLayer::new(self.gpu, op, inputs, self.minibatch, wanted, common)?)
                }
            });
            inputs = outputs;
            // Before the first weights nothing comes back at all, and behind them everything does.
            if op.has_weights() {
                wanted = InputGradient::Needed;
            }
        }
        Ok((parts, inputs))
    }
}

/// The most outputs that a layer with biases has.
fn widest(ops: &[Op]) -> usize {
    let outputs = ops.iter().map(|op| match op {
        Op::Dense(dense) => dense.outputs,
        Op::Conv(conv) => conv.geometry.outputs,
        Op::Residual(block) => widest(&block.body).max(widest(&block.skip)),
        _ => 0,
    });
    outputs.max().unwrap_or(0)
}
