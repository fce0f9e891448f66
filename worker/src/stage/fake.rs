//! A trainer of a stage that computes nothing and checks that its inputs belong together, for simulations of pipelines.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::job::Job;
use protocol::job::model::Partition;
use protocol::weights::dense::Dense;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::{Range, Tau};
use protocol::weights::sums::Sums;

use crate::dataset::Dataset;
use crate::model::ops::MeanLoss;
use crate::model::ops::matmul::WriteMode;
use crate::pipeline::Pipeline;
use crate::stage::{Advance, HoldsStage, Layers, Membership, Returned, StageArrays, StageModel};
use crate::task::objective::ObjectiveError;
use crate::trainer::fake::FakeTrainer;
use crate::trainer::gradient_source::GradientSource;
use crate::trainer::{StateError, StepControl, StepReport, TrainError, Trainer, TrainerState};
use protocol::weights::contribution::Contribution;

/// Fake trainer of a pipeline stage for simulations: computes nothing, as [`FakeTrainer`] for a whole network, on
/// samples of [`Dataset::fake`].
pub struct FakeStageTrainer {
    trainer: FakeTrainer,
    stage: StageModel<FakeLayers>,
}

impl FakeStageTrainer {
    /// Creates the fake trainer of one worker's stage of a pipeline, with these initial weights.
    pub fn new(
        job: &Job,
        dataset: &Arc<Dataset>,
        partition: Partition,
        pipeline: Pipeline,
        counts: &[i32],
    ) -> Result<Self, ObjectiveError> {
        let membership = Membership::of_job(job, dataset, partition, pipeline)?;
        let stage = StageModel::new(membership, |partition, stage, own| {
            let ranges = partition.layer_ranges();
            let outputs = ranges[own.number].share(stage.number).map_or(0, |share| share.len());
            let before = own.number.checked_sub(1).map(|before| ranges[before].outputs());
            Ok(FakeLayers {
                number: own.number,
                inputs: before.unwrap_or(1),
                outputs,
                owners_after: ranges.get(own.number + 1).map_or(0, |after| after.owners().len()),
                under_way: BTreeMap::new(),
            })
        });
        Ok(Self {
            trainer: FakeTrainer::new(counts),
            stage: stage.unwrap_or_else(|error| unreachable!("layers that compute nothing fail: {error}")),
        })
    }
}

/// Layers whose outputs are the numbers of their samples. They check that all values of a row are of one sample.
pub struct FakeLayers {
    number: usize,
    inputs: usize,
    outputs: usize,
    /// Number of workers that hold the next layers and so send gradients back to these.
    owners_after: usize,
    /// Samples of micro-batches that have gone forward and not come back, by step and micro-batch.
    under_way: BTreeMap<(u64, u16), Vec<f32>>,
}

impl FakeLayers {
    /// Returns the sample number that each row of fake activations repeats.
    fn samples(&self, inputs: &[f32], width: usize) -> Vec<f32> {
        let rows = inputs.chunks_exact(width);
        let of_row = |row: &[f32]| {
            assert!(
                row.iter().all(|number| *number == row[0]),
                "numbers of different samples are in one row of layer range {}: {row:?}",
                self.number
            );
            row[0]
        };
        rows.map(of_row).collect()
    }
}

/// Returns rows of fake activations that repeat the number of their sample.
fn rows(samples: &[f32], width: usize) -> Vec<f32> {
    samples.iter().flat_map(|&sample| vec![sample; width]).collect()
}

impl Layers for FakeLayers {
    type Weights = ();
    type Shared = ();
    type Gradient = ();
    type Deferred = ();

    fn number(&self) -> usize {
        self.number
    }

    fn forward(
        &mut self,
        micro_batch: (u64, u16),
        (): &(),
        _key: u64,
        inputs: Vec<f32>,
    ) -> Result<Cow<'_, [f32]>, TrainError> {
        let samples = self.samples(&inputs, self.inputs);
        let outputs = rows(&samples, self.outputs);
        let before = self.under_way.insert(micro_batch, samples);
        assert_eq!(before, None, "micro-batch {micro_batch:?} goes forward twice");
        Ok(Cow::Owned(outputs))
    }

    fn backward(
        &mut self,
        micro_batch: (u64, u16),
        (output_gradients, _loss): (Vec<f32>, f32),
        _write_mode: WriteMode,
        (): &mut (),
    ) -> Result<Option<Returned<()>>, TrainError> {
        let Some(samples) = self.under_way.remove(&micro_batch) else {
            return Ok(None);
        };
        // Each of the workers after this one has sent back the number of the sample.
        let sums: Vec<f32> = samples.iter().map(|sample| sample * self.owners_after as f32).collect();
        assert_eq!(
            self.samples(&output_gradients, self.outputs),
            sums,
            "gradients of other samples come back to layer range {}",
            self.number
        );
        Ok(Some(Returned {
            loss: 1.0,
            input_gradients: if self.number == 0 {
                Vec::new()
            } else {
                rows(&samples, self.inputs)
            },
            deferred: vec![()],
        }))
    }

    fn run_loss_head(
        &mut self,
        ((), _key, inputs): (&(), u64, Vec<f32>),
        (loss, _share): (&MeanLoss, f32),
        _write_mode: WriteMode,
        (): &mut (),
    ) -> Result<Returned<()>, TrainError> {
        let samples = self.samples(&inputs, self.inputs);
        assert_eq!(
            samples,
            loss.answers.numbers(),
            "activations of other samples come to the last layers"
        );
        Ok(Returned {
            loss: 1.0,
            input_gradients: inputs,
            deferred: Vec::new(),
        })
    }

    fn compute_deferred(&self, (): (), _write_mode: WriteMode, (): &mut ()) {}

    fn infer(&mut self, (): &(), inputs: Vec<f32>) -> Result<Vec<f32>, TrainError> {
        Ok(rows(&self.samples(&inputs, self.inputs), self.outputs))
    }

    fn copied(&self, (): &()) -> Result<(), TrainError> {
        Ok(())
    }

    fn clear(&mut self) {
        self.under_way.clear();
    }
}

impl HoldsStage for FakeStageTrainer {
    type Layers = FakeLayers;

    fn stage(&self) -> &StageModel<FakeLayers> {
        &self.stage
    }

    fn stage_mut(&mut self) -> &mut StageModel<FakeLayers> {
        &mut self.stage
    }

    fn advance(&mut self) -> Result<Advance, TrainError> {
        self.stage.advance(StageArrays {
            own: &(),
            shared: &(),
            gradient: &mut (),
        })
    }

    fn begin_evaluation(&mut self) -> Result<(), TrainError> {
        self.stage.begin_evaluation(&())
    }

    fn advance_evaluation(&mut self) -> Result<Advance, TrainError> {
        self.stage.advance_evaluation(&())
    }
}

impl Trainer for FakeStageTrainer {
    fn weights(&self) -> usize {
        self.trainer.weights()
    }

    fn step(
        &mut self,
        samples: &[u32],
        control: StepControl,
        changes: &mut Vec<u32>,
    ) -> Result<StepReport, TrainError> {
        self.stage.gradient(&(), samples, 0, &mut ())?;
        self.trainer.step(samples, control, changes)
    }

    fn loss(&mut self, samples: &[u32]) -> Result<f32, TrainError> {
        self.trainer.loss(samples)
    }

    fn release(&mut self, tau: Tau, changes: &mut Vec<u32>) -> Result<Range, TrainError> {
        self.trainer.release(tau, changes)
    }

    fn take(
        &mut self,
        window: std::ops::Range<usize>,
        contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError> {
        self.trainer.take(window, contribution)
    }

    fn apply(&mut self, changes: &[u32], tau: Tau) -> Result<Range, TrainError> {
        self.trainer.apply(changes, tau)
    }

    fn jump(&mut self, sums: &Sums) -> Result<Range, TrainError> {
        self.trainer.jump(sums)
    }

    fn copy_weights(&self) -> Result<Vec<f32>, TrainError> {
        self.trainer.copy_weights()
    }

    fn digest(&self) -> Result<Option<Digest>, TrainError> {
        self.trainer.digest()
    }

    fn residual_quantile(&self, fraction: f64) -> Result<f64, TrainError> {
        self.trainer.residual_quantile(fraction)
    }

    fn residual_norm(&self) -> Result<f64, TrainError> {
        self.trainer.residual_norm()
    }

    fn state(&self) -> Result<TrainerState, TrainError> {
        self.trainer.state()
    }

    fn restore(&mut self, state: TrainerState) -> Result<(), StateError> {
        self.trainer.restore(state)
    }
}
