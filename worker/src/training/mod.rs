//! The training loop of one worker: which samples come next, how large the step is, and what leaves as a batch.
//!
//! Knows no threads and no clock. Everything that happens is a call: another origin's batch is applied, a step is
//! made, the origin is closed.

use std::time::Duration;

use protocol::batch::{BatchError, Flags, Header};
use protocol::cursor::CursorAdvance;
use protocol::digest::Digest;
use protocol::ids::{OriginId, RunId};
use protocol::job::{Job, Threshold};
use protocol::lattice::{Range, Tau};
use protocol::plan::{PlanError, SamplePlan, SharedPlan};
use protocol::staleness_guard::StalenessGuard;
use protocol::tau_controller::TauController;
use thiserror::Error;

use crate::dataset::Dataset;
use crate::trainer::{StepControl, TrainError, Trainer};

/// Which worker this is, of which run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The run.
    pub run: RunId,
    /// This incarnation of the worker.
    pub origin: OriginId,
    /// Its place among the run's workers.
    pub slot: usize,
    /// How many workers the run has.
    pub slots: usize,
}

impl Identity {
    /// The only worker of a run.
    #[must_use]
    pub fn alone(run: u64) -> Self {
        Self {
            run: RunId(run),
            origin: OriginId(run),
            slot: 0,
            slots: 1,
        }
    }
}

/// What one step did, beside the batch it wrote.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The mean loss of its minibatch.
    pub loss: f32,
    /// How many samples that had.
    pub samples: usize,
    /// The changes that left.
    pub changes: usize,
    /// The τ of the batch.
    pub tau: Tau,
    /// How far out the weights are.
    pub range: Range,
    /// How stale others' batches are when they arrive, in rounds.
    pub staleness: f64,
    /// The part of its thread time that is training; the rest is exchange.
    pub training_time: Duration,
}

/// Why a worker cannot start or go on.
#[derive(Debug, Error)]
pub enum TrainingError {
    /// Training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The batch could not be written.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The samples cannot be shared out.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// One worker's training.
pub struct Training<T> {
    trainer: T,
    job: Job,
    identity: Identity,
    plan: SamplePlan,
    controller: TauController,
    guard: StalenessGuard,
    /// The last batch's number; steps are numbered alike.
    sequence: u64,
    /// Batches in the weights, other origins' included.
    batches_applied: u64,
    /// Samples in applied batches, other origins' included: what schedules follow.
    samples_applied: u64,
    samples_total: u64,
    stopping: bool,
    indices: Vec<u32>,
    cursors: Vec<CursorAdvance>,
    words: Vec<u32>,
}

impl<T: Trainer> Training<T> {
    /// Training from the start of a run.
    pub fn new(trainer: T, job: &Job, dataset: &Dataset, identity: Identity) -> Result<Self, TrainingError> {
        let labels = dataset.train.labels();
        let shared = SharedPlan {
            split: job.split,
            seed: job.seed,
            labels: labels.into(),
            slots: identity.slots,
            balanced: job.balanced,
            epochs: job.epochs,
            minibatch: job.minibatch as usize,
        };
        let controller = match job.threshold {
            Threshold::Fixed(tau) => TauController::fixed(tau),
            Threshold::Density(_) => TauController::following(),
        };
        Ok(Self {
            plan: SamplePlan::new(shared, identity.slot)?,
            samples_total: labels.len() as u64 * u64::from(job.epochs),
            job: job.clone(),
            trainer,
            identity,
            controller,
            guard: StalenessGuard::default(),
            sequence: 0,
            batches_applied: 0,
            samples_applied: 0,
            stopping: false,
            indices: Vec::new(),
            cursors: Vec::new(),
            words: Vec::new(),
        })
    }

    /// The share of the run's samples that are in applied batches.
    #[must_use]
    pub fn progress(&self) -> f64 {
        self.samples_applied as f64 / self.samples_total.max(1) as f64
    }

    /// How stale others' batches are when they are applied here: the batches that came between, in rounds of one batch
    /// from every other worker, averaged. 0 where nothing arrives.
    #[must_use]
    pub fn staleness(&self) -> f64 {
        self.guard.rounds()
    }

    /// Applies another origin's changes, which have been checked, and counts the samples behind them. `seen` is what
    /// their header says of the batches that they were computed on.
    pub fn apply(&mut self, words: &[u32], tau: Tau, samples: u64, seen: u64) -> Result<Range, TrainingError> {
        let others = self.identity.slots.saturating_sub(1).max(1);
        self.guard
            .observe(self.batches_applied.saturating_sub(seen) as f64 / others as f64);
        self.batches_applied += 1;
        self.samples_applied += samples;
        Ok(self.trainer.apply(words, tau)?)
    }

    /// Makes the next step and appends its batch to `frame`; `None` when there is nothing left to train.
    pub fn step(&mut self, frame: &mut Vec<u8>) -> Result<Option<Step>, TrainingError> {
        if self.stopping || !self.plan.next_minibatch(&mut self.indices, &mut self.cursors) {
            return Ok(None);
        }
        let schedule = self.job.lr_schedule.factor(self.progress());
        let learning_rate = self.job.optimiser.learning_rate * schedule * self.guard.factor();
        self.controller.follow_rate(learning_rate);
        let tau = self.controller.tau();
        let control = StepControl {
            learning_rate,
            clip: self.job.clip,
            step: self.sequence + 1,
            tau,
        };
        let report = self.trainer.step(&self.indices, control, &mut self.words)?;
        let tau = match tau {
            Some(tau) => tau,
            None => self.release_first(learning_rate)?,
        };
        if let Threshold::Density(target) = self.job.threshold {
            self.controller
                .observe(self.words.len() as f64 / self.trainer.weights() as f64, target);
        }
        let samples = self.indices.len();
        self.samples_applied += samples as u64;
        self.write_batch(tau, report.loss, Flags::default(), frame)?;
        Ok(Some(Step {
            loss: report.loss,
            samples,
            changes: self.words.len(),
            tau,
            range: report.range,
            staleness: self.staleness(),
            training_time: report.training_time,
        }))
    }

    /// No further steps: the run is to end.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Appends the batch that closes this origin. It holds no changes: what is left in the residual is dropped.
    pub fn close(&mut self, frame: &mut Vec<u8>) -> Result<(), TrainingError> {
        self.words.clear();
        self.indices.clear();
        self.cursors.clear();
        let flags = Flags {
            last: true,
            stop: self.stopping,
        };
        self.write_batch(Tau::ONE_STEP, 0.0, flags, frame)
    }

    /// The trainer, for what can be asked of it between steps.
    pub fn trainer(&self) -> &T {
        &self.trainer
    }

    /// After the first step: nobody knew how large updates are, but now the residual tells. τ starts where the target
    /// fraction of it leaves at once.
    fn release_first(&mut self, learning_rate: f64) -> Result<Tau, TrainingError> {
        let Threshold::Density(target) = self.job.threshold else {
            return Ok(Tau::ONE_STEP);
        };
        let quantile = self.trainer.residual_quantile(target)?;
        if !quantile.is_finite() {
            return Err(TrainError::NotFinite.into());
        }
        self.controller.start(quantile, target, learning_rate);
        let tau = self.controller.tau().unwrap_or(Tau::ONE_STEP);
        self.trainer.release(tau, &mut self.words)?;
        Ok(tau)
    }

    fn write_batch(&mut self, tau: Tau, loss: f32, flags: Flags, frame: &mut Vec<u8>) -> Result<(), TrainingError> {
        self.sequence += 1;
        let header = Header {
            run: self.identity.run,
            origin: self.identity.origin,
            sequence: self.sequence,
            seen: self.batches_applied,
            tau,
            digest: Digest::of_changes(&self.words, tau),
            cursors: std::mem::take(&mut self.cursors),
            samples: self.indices.len() as u32,
            loss,
            flags,
        };
        header.encode(&self.words, frame)?;
        self.cursors = header.cursors;
        self.batches_applied += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
