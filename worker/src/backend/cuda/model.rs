//! A model on the device: dfdx's network of its layers, with room for the largest minibatch.

use std::rc::Rc;

use dfdx::prelude::HasShape;

use super::abi::Images;
use super::address::At;
use super::error::GpuError;
use super::gpu::Gpu;
use super::layers::{CudaJunction, CudaLayer, PARTS_MAX, Pass, PassData, Statistics};
use super::loss::CudaLoss;
use super::memory::Array;
use super::place::{Place, place_of, tensor_at};
use crate::network::{Network, Part};
use crate::objective::Objective;
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
    pub(super) fn new(
        gpu: &Rc<Gpu>,
        program: &Program,
        objective: &Objective,
        minibatch: usize,
        purpose: Purpose,
    ) -> Result<Self, GpuError> {
        let first = program.first_with_weights();
        let features = program.input.channels * program.input.plane;
        let making = Making {
            gpu,
            minibatch,
            trains: purpose == Purpose::Training,
        };
        let (before, after) = program.ops.split_at(first.min(program.ops.len()));
        let (mut parts, inputs) = making.parts(before, features, InputGradient::NotNeeded)?;
        // The first layer with weights has nobody to hand a gradient to; blocks always have, within them.
        let (trained, inputs) = making.parts(after, inputs, InputGradient::NotNeeded)?;
        parts.extend(trained);
        let classes = match purpose {
            Purpose::Training => inputs,
            Purpose::Evaluation => 0,
        };
        Ok(Self {
            network: Network::new(parts, first),
            loss: CudaLoss::new(gpu, objective, minibatch, classes)?,
            input: program.input,
            x: Array::zeros(gpu, minibatch * features)?,
            sums: Array::zeros(gpu, PARTS_MAX * widest(&program.ops))?,
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

    fn pass(&self, parameters: &Parameters<Place>, key: u64, statistics: Statistics) -> Pass {
        Pass(Rc::new(PassData {
            gpu: Rc::clone(&self.gpu),
            parameters: parameters.clone(),
            key,
            sums: self.sums.at(),
            statistics,
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
        let pass = self.pass(parameters, key, Statistics::Minibatch);
        self.network.descend(&self.loss, &pass, x, lent).map(drop)
    }

    /// Launches forward alone. Where the logits will lie, and how many there are for each sample.
    pub(super) fn logits(
        &self,
        parameters: &Parameters<Place>,
        samples: usize,
        statistics: Statistics,
    ) -> Result<(At<f32>, usize), GpuError> {
        self.gpu.products.compete(false);
        let x = tensor_at(self.x.at(), (samples, self.input.channels * self.input.plane))?;
        let logits = self.network.forward(&self.pass(parameters, 0, statistics), x)?;
        Ok((place_of(&logits), logits.shape().1))
    }
}

/// How layers are made.
struct Making<'a> {
    gpu: &'a Gpu,
    minibatch: usize,
    trains: bool,
}

impl Making<'_> {
    /// Operations as parts of a network, and the numbers per sample after them. The first one hands its input's gradient on
    /// if that is wanted, all others do.
    fn parts(
        &self,
        ops: &[Op],
        mut inputs: usize,
        mut wanted: InputGradient,
    ) -> Result<(Vec<Part<CudaLayer>>, usize), GpuError> {
        let mut parts = Vec::with_capacity(ops.len());
        for op in ops {
            let outputs = op.outputs(inputs);
            parts.push(match op {
                Op::Residual(block) => Part::Block {
                    body: self.parts(&block.body, inputs, InputGradient::Needed)?.0,
                    skip: self.parts(&block.skip, inputs, InputGradient::Needed)?.0,
                    junction: CudaJunction::new(self.gpu, block, outputs, self.minibatch, self.trains)?,
                },
                op => {
                    let wanted = if self.trains { wanted } else { InputGradient::NotNeeded };
                    Part::Layer(CudaLayer::new(self.gpu, op, inputs, self.minibatch, wanted)?)
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
