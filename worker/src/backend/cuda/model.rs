//! A model on the GPU: dfdx's network of GPU layers, with buffers for the largest minibatch.

use std::rc::Rc;

use dfdx::prelude::{Gradients, HasShape};

use super::abi::Images;
use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::Gpu;
use super::layers::{ConvRoom, CudaJunction, CudaLayer, Pass, PassData, Statistics, StepKey};
use super::loss::CudaLoss;
use super::memory::Array;
use super::tensor_address::{TensorAddress, place_of, tensor_at};
use crate::model::network::{Descent, ForwardPass, Network, NetworkNode};
use crate::model::program::{InputGradient, Op, Planes, Program};
use crate::model::tape::{Activations, Parameters};
use crate::task::objective::Objective;

/// The use of a model, which decides the buffers that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The model is a whole network in training: one minibatch at a time goes forward and backward.
    Training,
    /// The model is a pipeline stage in training: several micro-batches are in flight, each in a model of its own. The
    /// argument says whether the stage before needs the input gradient.
    Passing(InputGradient),
    /// The model is evaluated: it runs forward passes only.
    Evaluation,
}

/// The layers of a model, its loss, and the buffers of one minibatch.
pub(super) struct CudaModel {
    gpu: Rc<Gpu>,
    network: Network<CudaLayer>,
    loss: CudaLoss,
    input: Planes,
    x: Array<f32>,
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
            // A whole network keeps its unfolded inputs for the backward pass; other models unfold all in one shared
            // buffer.
            common: match purpose {
                Purpose::Training => None,
                _ => Some(Rc::new(ConvRoom::of_all(gpu, &program.ops, minibatch, trains)?)),
            },
        };
        // The first layer with weights needs no input gradient, unless a stage lies before it. Within residual blocks
        // all layers do.
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
            minibatch,
            gpu: Rc::clone(gpu),
        })
    }

    /// Makes a second model of the same layers, so that two micro-batches can be in flight at once. It has its own
    /// buffers for the forward pass, and shares those of the backward pass.
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
            minibatch: self.minibatch,
            gpu: Rc::clone(&self.gpu),
        })
    }

    /// Returns the memory layout of this many samples in the buffer of a minibatch ([`CudaModel::x`]).
    pub(super) fn images(&self, samples: usize) -> Images {
        Images {
            channels: self.input.channels as u32,
            samples: samples as u32,
            plane: self.input.plane as u32,
        }
    }

    /// Returns the address at which the caller must put the samples of a minibatch.
    pub(super) fn x(&self) -> DeviceAddress<f32> {
        self.x.at()
    }

    /// Largest number of labels in a minibatch.
    pub(super) fn labels_max(&self) -> usize {
        self.loss.room().labels.len()
    }

    /// Returns the address at which the caller must put the labels of a minibatch.
    pub(super) fn labels(&self) -> DeviceAddress<u32> {
        self.loss.room().labels.at()
    }

    /// Largest number of samples in a minibatch.
    pub(super) fn minibatch(&self) -> usize {
        self.minibatch
    }

    /// Returns the address at which output gradients must lie, if they come from the next pipeline stage.
    pub(super) fn output_gradients(&self) -> DeviceAddress<f32> {
        self.loss.room().output_gradients.at()
    }

    /// Returns the address of each sample's loss, once a pass has computed them.
    pub(super) fn losses(&self) -> DeviceAddress<f32> {
        self.loss.room().losses.at()
    }

    fn pass(&self, parameters: &Parameters<TensorAddress>, key: StepKey, share: f32, statistics: Statistics) -> Pass {
        Pass(Rc::new(PassData {
            gpu: Rc::clone(&self.gpu),
            parameters: parameters.clone(),
            key,
            statistics,
            share,
        }))
    }

    /// Returns the first `samples` samples in the model's input buffer ([`CudaModel::x`]) as a tensor.
    fn samples(&self, samples: usize) -> Result<Activations<TensorAddress>, GpuError> {
        Ok(tensor_at(self.x.at(), (samples, self.input.numbers()))?)
    }

    /// Launches forward pass, loss and backward pass of the minibatch at [`CudaModel::x`], and writes the whole
    /// gradient.
    ///
    /// `gradient` must have room for one number per parameter.
    pub(super) fn descend(
        &self,
        parameters: &Parameters<TensorAddress>,
        gradient: DeviceAddress<f32>,
        samples: usize,
        key: StepKey,
    ) -> Result<(), GpuError> {
        self.descend_part(parameters, gradient, (samples, 1.0), key).map(drop)
    }

    /// Launches forward pass, loss and backward pass of a micro-batch, where `share` is its fraction of the minibatch.
    /// Returns its samples, and its loss and gradients.
    pub(super) fn descend_part(
        &self,
        parameters: &Parameters<TensorAddress>,
        gradient: DeviceAddress<f32>,
        (samples, share): (usize, f32),
        key: StepKey,
    ) -> Result<(Activations<TensorAddress>, Descent<TensorAddress>), GpuError> {
        // Smaller minibatches are rare, so a search for their fastest matrix products does not pay.
        self.gpu.products.compete(samples == self.minibatch);
        let x = self.samples(samples)?;
        let lent = parameters.lend_gradient(vec![gradient.into()])?;
        let pass = self.pass(parameters, key, share, Statistics::Minibatch);
        let descent = self.network.descend(&self.loss, &pass, x.clone(), lent)?;
        Ok((x, descent))
    }

    /// Launches the forward pass of the samples at [`CudaModel::x`], and records it on the tape for a later backward
    /// pass.
    pub(super) fn forward(
        &self,
        parameters: &Parameters<TensorAddress>,
        samples: usize,
        key: u64,
    ) -> Result<(ForwardPass<CudaLayer>, Pass), GpuError> {
        self.gpu.products.compete(samples == self.minibatch);
        let pass = self.pass(parameters, StepKey::Known(key), 1.0, Statistics::Minibatch);
        let forward = self
            .network
            .forward_taped(&pass, self.samples(samples)?, Gradients::leaky())?;
        Ok((forward, pass))
    }

    /// Launches a forward pass without a backward pass after it. Returns the address of the model's outputs (logits)
    /// and their number per sample.
    pub(super) fn logits(
        &self,
        parameters: &Parameters<TensorAddress>,
        samples: usize,
        statistics: Statistics,
    ) -> Result<(DeviceAddress<f32>, usize), GpuError> {
        self.gpu.products.compete(false);
        let pass = self.pass(parameters, StepKey::Known(0), 1.0, statistics);
        let logits = self.network.forward(&pass, self.samples(samples)?)?;
        Ok((place_of(&logits), logits.shape().1))
    }
}

/// Settings by which the layers of a model are built on the GPU.
struct Making<'a> {
    gpu: &'a Gpu,
    minibatch: usize,
    trains: bool,
    /// Buffer in which all convolutions unfold their inputs; `None` if each has its own.
    common: Option<Rc<ConvRoom>>,
}

impl Making<'_> {
    /// Builds layers for a sequence of operations, and returns them with the number of outputs per sample of the last
    /// one. `wanted` says whether the first layer needs an input gradient; layers after the first weights always do.
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
            // Layers before the first weights need no gradient; all layers after them do.
            if op.has_weights() {
                wanted = InputGradient::Needed;
            }
        }
        Ok((parts, inputs))
    }
}
