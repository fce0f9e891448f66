//! The CPU backend of pipeline stages: computes the layers of one stage.

use std::borrow::Cow;
use std::collections::BTreeMap;

use dfdx::prelude::{Cpu, Gradients};
use protocol::job::model::{Partition, PipelineStage, StageSlice};
use protocol::job::optimiser::Rule;

use super::CpuBackend;
use crate::backend::replica::Replica;
use crate::learning::muon::MuonBlocks;
use crate::machine::parallel::Threads;
use crate::model::network::{Descent, ForwardPass, Network};
use crate::model::ops::matmul::WriteMode;
use crate::model::ops::{
    self, BackwardContext, CpuLayer, DeferredWeightGradient, MeanLoss, OpError, Parameters, Pass, Seed, Statistics,
    from_rows, values,
};
use crate::model::program::{ImageOrder, Program};
use crate::stage::{Advance, HoldsStage, Layers, Membership, Returned, StageArrays, StageModel};
use crate::trainer::TrainError;

/// A trainer of one pipeline stage on the CPU.
pub type CpuStageTrainer = Replica<CpuBackend<StageModel<CpuLayers>>>;

impl CpuStageTrainer {
    /// Makes a trainer of a worker's pipeline stage on the CPU. Its own and shared weights both begin as `counts`: the
    /// initial weights as multiples of the step between two neighbouring values.
    pub fn in_pipeline(
        membership: Membership,
        counts: &[i32],
        rule: Rule,
        threads: Threads,
    ) -> Result<Self, TrainError> {
        let (stage, seed) = (membership.stage(), membership.dropout_seed);
        let whole = membership.partition.whole().clone();
        let parts = |muon| MuonBlocks::new(&whole, muon).of_stage(&stage);
        let model = StageModel::new(membership, |partition, stage, own| {
            Ok(CpuLayers::new(partition, stage, own, threads))
        })?;
        let backend = CpuBackend::of(model, &stage.layout, counts, rule, parts, threads)?;
        Self::on(backend, rule, seed)
    }
}

impl HoldsStage for CpuBackend<StageModel<CpuLayers>> {
    type Layers = CpuLayers;

    fn stage(&self) -> &StageModel<CpuLayers> {
        &self.gradient_source
    }

    fn stage_mut(&mut self) -> &mut StageModel<CpuLayers> {
        &mut self.gradient_source
    }

    fn advance(&mut self) -> Result<Advance, TrainError> {
        self.gradient_source.advance(StageArrays {
            own: &self.own,
            shared: &self.shared,
            gradient: &mut self.gradient,
        })
    }

    fn begin_evaluation(&mut self) -> Result<(), TrainError> {
        self.gradient_source.begin_evaluation(&self.shared)
    }

    fn advance_evaluation(&mut self) -> Result<Advance, TrainError> {
        self.gradient_source.advance_evaluation(&self.shared)
    }
}

/// Some consecutive layers (a layer range) of a worker's pipeline stage on the CPU: all of their neurons, or the slice
/// of them that the worker holds.
pub struct CpuLayers {
    number: usize,
    /// Length of one sample's input to the layers.
    inputs: usize,
    network: Network<CpuLayer>,
    /// The layers of `network` without dropout, for evaluation.
    forward: Network<CpuLayer>,
    /// Micro-batches after their forward and before their backward pass, by `(step, micro-batch)`. Each keeps the
    /// weights that it used.
    under_way: BTreeMap<(u64, u16), (ForwardPass<CpuLayer>, Pass)>,
}

impl CpuLayers {
    fn new(partition: &Partition, stage: &PipelineStage, own: &StageSlice, threads: Threads) -> Self {
        let program = Program::of_layer_range(partition, stage, own, ImageOrder::BySample);
        Self {
            number: own.number,
            inputs: program.input.numbers(),
            network: ops::network(program.clone(), threads),
            forward: ops::network(program.for_evaluation(), threads),
            under_way: BTreeMap::new(),
        }
    }

    /// Returns the loss and the gradients of the inputs from a backward pass, and moves the gradient of the weights
    /// back into the caller's buffer `gradient`.
    fn returned(
        &self,
        inputs: &ops::Rows,
        mut descent: Descent<f32>,
        pass: &Pass,
        gradient: &mut Vec<f32>,
    ) -> Result<Returned<DeferredWeightGradient>, OpError> {
        let input_gradients = if self.number == 0 {
            Vec::new()
        } else {
            std::mem::take(&mut **descent.gradients.get_or_alloc_mut(inputs)?)
        };
        *gradient = pass.parameters.take_gradient(descent.gradients)?;
        Ok(Returned {
            loss: values(&descent.loss)[0],
            input_gradients,
            deferred: pass.backward.take_deferred(),
        })
    }

    /// Arranges the inputs of these layers as rows, one for each sample.
    fn rows(&self, inputs: Vec<f32>) -> Result<ops::Rows, OpError> {
        from_rows(&Cpu::default(), inputs.len() / self.inputs.max(1), self.inputs, inputs)
    }
}

impl Layers for CpuLayers {
    type Weights = Parameters;
    type Shared = [f32];
    type Gradient = Vec<f32>;
    type Deferred = DeferredWeightGradient;

    fn number(&self) -> usize {
        self.number
    }

    fn forward(
        &mut self,
        micro_batch: (u64, u16),
        weights: &Parameters,
        key: u64,
        inputs: Vec<f32>,
    ) -> Result<Cow<'_, [f32]>, TrainError> {
        let pass = pass(weights, key);
        let forward = self
            .network
            .forward_taped(&pass, self.rows(inputs)?, Gradients::leaky())?;
        self.under_way.insert(micro_batch, (forward, pass));
        Ok(Cow::Borrowed(values(&self.under_way[&micro_batch].0.outputs)))
    }

    fn backward(
        &mut self,
        micro_batch: (u64, u16),
        (output_gradients, loss): (Vec<f32>, f32),
        write_mode: WriteMode,
        gradient: &mut Vec<f32>,
    ) -> Result<Option<Returned<DeferredWeightGradient>>, TrainError> {
        let Some((forward, pass)) = self.under_way.remove(&micro_batch) else {
            return Ok(None);
        };
        pass.backward.begins(write_mode, 1.0);
        let inputs = forward.inputs.clone();
        let descent = forward.backward(&Seed::new(output_gradients, loss, std::mem::take(gradient)), &pass)?;
        Ok(Some(self.returned(&inputs, descent, &pass, gradient)?))
    }

    fn run_loss_head(
        &mut self,
        (weights, key, inputs): (&Parameters, u64, Vec<f32>),
        (loss, share): (&MeanLoss, f32),
        write_mode: WriteMode,
        gradient: &mut Vec<f32>,
    ) -> Result<Returned<DeferredWeightGradient>, TrainError> {
        let pass = pass(weights, key);
        pass.backward.begins(write_mode, share);
        let inputs = self.rows(inputs)?;
        let lent = weights.lend_gradient(std::mem::take(gradient))?;
        let descent = self.network.descend(loss, &pass, inputs.clone(), lent)?;
        Ok(self.returned(&inputs, descent, &pass, gradient)?)
    }

    fn compute_deferred(&self, deferred: DeferredWeightGradient, write_mode: WriteMode, gradient: &mut Vec<f32>) {
        deferred.add_to(gradient, write_mode);
    }

    fn infer(&mut self, weights: &Parameters, inputs: Vec<f32>) -> Result<Vec<f32>, TrainError> {
        let outputs = self.forward.forward(&pass(weights, 0), self.rows(inputs)?)?;
        Ok(values(&outputs).to_vec())
    }

    fn copied(&self, shared: &[f32]) -> Result<Parameters, TrainError> {
        Ok(Parameters::new(&Cpu::default(), shared.to_vec())?)
    }

    fn clear(&mut self) {
        self.under_way.clear();
    }
}

/// Makes the settings of one micro-batch's pass through the layers. `key` seeds dropout.
fn pass(parameters: &Parameters, key: u64) -> Pass {
    Pass {
        parameters: parameters.clone(),
        key,
        statistics: Statistics::Minibatch,
        backward: BackwardContext::of_micro_batch(),
    }
}
