//! A model on the device: dfdx's network of its layers, with room for the largest minibatch.

use std::rc::Rc;

use dfdx::prelude::HasShape;

use super::abi::Images;
use super::address::At;
use super::error::GpuError;
use super::gpu::Gpu;
use super::layers::{CudaLayer, PARTS_MAX, Pass, PassData};
use super::loss::CudaLoss;
use super::memory::Array;
use super::place::{Place, place_of, tensor_at};
use crate::network::Network;
use crate::program::{InputGradient, Op, Planes, Program};
use crate::tape::Parameters;

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Gradients come back through it.
    Training,
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
    sums: Array<f32>,
    minibatch: usize,
}

impl CudaModel {
    pub(super) fn new(gpu: &Rc<Gpu>, program: &Program, minibatch: usize, purpose: Purpose) -> Result<Self, GpuError> {
        let first = program.first_with_weights();
        let features = program.input.channels * program.input.plane;
        let mut layers: Vec<CudaLayer> = Vec::new();
        let mut inputs = features;
        for (at, op) in program.ops.iter().enumerate() {
            let input_gradient = if purpose == Purpose::Training && at > first {
                InputGradient::Needed
            } else {
                InputGradient::NotNeeded
            };
            let layer = CudaLayer::new(gpu, op, inputs, minibatch, input_gradient)?;
            inputs = layer.outputs();
            layers.push(layer);
        }
        let columns = program.ops.iter().map(|op| match op {
            Op::Dense(dense) => dense.outputs,
            Op::Conv(conv) => conv.geometry.outputs,
            _ => 0,
        });
        let classes = match purpose {
            Purpose::Training => inputs,
            Purpose::Evaluation => 0,
        };
        Ok(Self {
            network: Network::new(layers, first),
            loss: CudaLoss::new(gpu, minibatch, classes)?,
            input: program.input,
            x: Array::zeros(gpu, minibatch * features)?,
            sums: Array::zeros(gpu, PARTS_MAX * columns.max().unwrap_or(0))?,
            minibatch,
            gpu: Rc::clone(gpu),
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
    pub(super) fn x(&self) -> At<f32> {
        self.x.at()
    }

    /// Where its labels are to lie.
    pub(super) fn labels(&self) -> At<u32> {
        self.loss.room().labels.at()
    }

    /// Each sample's loss, once they are computed.
    pub(super) fn losses(&self) -> At<f32> {
        self.loss.room().losses.at()
    }

    fn pass(&self, parameters: &Parameters<Place>, key: u64) -> Pass {
        Pass(Rc::new(PassData {
            gpu: Rc::clone(&self.gpu),
            parameters: parameters.clone(),
            key,
            sums: self.sums.at(),
        }))
    }

    /// Launches forward, loss and backward of the minibatch that lies at [`CudaModel::x`]: writes the whole gradient.
    ///
    /// `gradient` must have room for as many numbers as there are parameters.
    pub(super) fn descend(
        &self,
        parameters: &Parameters<Place>,
        gradient: At<f32>,
        samples: usize,
        key: u64,
    ) -> Result<(), GpuError> {
        // Smaller minibatches are rare, and not worth finding the fastest products for.
        self.gpu.products.compete(samples == self.minibatch);
        let x = tensor_at(self.x.at(), (samples, self.input.channels * self.input.plane))?;
        let lent = parameters.lend_gradient(vec![gradient.into()])?;
        let pass = self.pass(parameters, key);
        self.network.descend(&self.loss, &pass, x, lent).map(drop)
    }

    /// Launches forward alone. Where the logits will lie, and how many there are for each sample.
    pub(super) fn logits(&self, parameters: &Parameters<Place>, samples: usize) -> Result<(At<f32>, usize), GpuError> {
        self.gpu.products.compete(false);
        let x = tensor_at(self.x.at(), (samples, self.input.channels * self.input.plane))?;
        let logits = self.network.forward(&self.pass(parameters, 0), x)?;
        Ok((place_of(&logits), logits.shape().1))
    }
}
