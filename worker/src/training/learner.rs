//! The learner: a worker's replica and its records, which every training loop needs for a whole network or for a stage
//! of one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::job::optimiser::Rule;
use protocol::job::{Job, Keep};
use protocol::log::batch::{Batch, Header, OriginStatus, Payload};
use protocol::log::bundle::Bundle;
use protocol::log::cursor::{CursorAdvance, Cursors};
use protocol::stats::measured::Scores;
use protocol::weights::lattice::{Range, Tau};
use protocol::weights::sums::Sums;
use protocol::wire::attach::{JumpOrder, SaveOrder};

use super::applied::Applied;
use super::ending::Ending;
use super::pending::Pending;
use super::{
    AUDIT_EVERY, Closing, Counters, FromTraining, Identity, NORM_EVERY, Next, State, Step, ToTraining, TrainingError,
    planted,
};
use crate::emission::{self, Emission, Leaving, NextStep, Plan};
use crate::learning::multi_worker::Settings;
use crate::sampling::plan::{SamplePlan, SharedPlan};
use crate::trainer::{StateError, StepControl, StepReport, TrainError, Trainer};

/// Learning state of one worker: its copies of the weights, the plan of its samples, and counts of the batches that it
/// has made and applied.
pub(super) struct Learner<T> {
    pub(super) trainer: T,
    pub(super) job: Job,
    pub(super) identity: Identity,
    /// Training settings of this worker (optimiser, clipping, look-ahead), adapted to the number of workers of the run.
    pub(super) settings: Settings,
    /// Rule that decides which part of the worker's learned difference leaves as a batch, and when.
    pub(super) emission: Box<dyn Emission<T>>,
    pub(super) plan: SamplePlan,
    pub(super) applied: Applied,
    pub(super) counters: Counters,
    /// Samples, loss and shard positions of the steps since the last batch, which the next batch will count.
    pub(super) pending: Pending,
    pub(super) ending: Ending,
    /// Weight changes of the last step; kept so that the next step can use the same memory.
    pub(super) changes: Vec<u32>,
    /// Files to save the worker's state in, as soon as a batch has counted all steps so far.
    saves: Vec<PathBuf>,
    norm_told: Duration,
    audited: Duration,
}

impl<T: Trainer> Learner<T> {
    /// Creates the learning state of a worker at the start of a run, for training samples of these classes.
    pub(super) fn new(
        trainer: T,
        job: &Job,
        classes: Arc<[u32]>,
        identity: Identity,
        now: Duration,
    ) -> Result<Self, TrainingError> {
        let samples_total = classes.len() as u64 * u64::from(job.epochs);
        let shared = SharedPlan {
            split: job.split,
            seed: job.seed,
            labels: classes,
            slots: identity.slots,
            balanced: job.balanced,
            dealt_once: job.dealt_once,
            epochs: job.epochs,
            minibatch: job.step_samples() as usize,
            claims_after_batches: job.exchange.has_rounds_of_an_epoch(),
            trainers: job.trainers,
            founders: identity.founders,
        };
        let job = Job {
            optimiser: job.optimiser.for_steps(samples_total / u64::from(job.step_samples())),
            ..job.clone()
        };
        let emission = emission::of(&job, trainer.weights(), identity.slots);
        let first = trainer.digest()?.unwrap_or_default();
        Ok(Self {
            plan: SamplePlan::new(shared, identity.slot)?.of_origin(identity.origin),
            applied: Applied::new(first, samples_total),
            settings: emission.settings(&job, identity.slots),
            job,
            trainer,
            identity,
            emission,
            counters: Counters::default(),
            pending: Pending::default(),
            ending: Ending::No,
            changes: Vec::new(),
            saves: Vec::new(),
            norm_told: now,
            audited: now,
        })
    }

    /// Handles a message that means the same to training with and without a pipeline. Each training loop handles its
    /// own messages before.
    pub(super) fn hear(&mut self, event: ToTraining) -> Result<(), TrainingError> {
        match event {
            ToTraining::Apply(batch) => drop(self.apply(&batch)?),
            ToTraining::ApplyBundle(bundle) => drop(self.apply_bundle(&bundle)?),
            ToTraining::Jump(sums, order) => drop(self.jump(&sums, &order)?),
            ToTraining::Origin { origin, alive } => self.plan.set_origin_alive(origin, alive),
            ToTraining::Slot { slot, alive } => self.plan.set_slot_alive(slot, alive),
            ToTraining::Save(path) => self.saves.push(path),
            ToTraining::Stop => self.ending.stop(),
            ToTraining::Leave => self.ending.leave(),
            ToTraining::StandBy => self.ending.stand_by(),
            ToTraining::GoBack(weights) => self.ending.go_back(weights),
            ToTraining::Pause(_)
            | ToTraining::GoOn(_)
            | ToTraining::GoOnPassing(_)
            | ToTraining::Copy(_)
            | ToTraining::CopyLast(..)
            | ToTraining::Finish(_)
            | ToTraining::Pipeline(_) => {}
        }
        Ok(())
    }

    /// Returns the average staleness of other workers' batches when they are applied here, in rounds of one batch from
    /// every worker. 0 where none arrive.
    pub(super) fn staleness(&self) -> f64 {
        self.applied.staleness() / self.identity.slots.max(1) as f64
    }

    /// Continues in the middle of a run: `cursors` are the samples done, and the trainer's weights already contain this
    /// many batches and samples.
    pub(super) fn resume(&mut self, cursors: &Cursors, batches: u64, samples: u64) {
        self.plan.skip_done(cursors);
        self.applied.resume(batches, samples);
    }

    /// Returns the worker's own state (residual and optimiser state) to be saved, or `None` while there are steps that
    /// no batch counts yet: their samples would be trained again and still be in the residual.
    pub(super) fn state(&self) -> Result<Option<State>, TrainingError> {
        if !self.pending.is_empty() {
            return Ok(None);
        }
        Ok(Some(State {
            origin: self.identity.origin,
            sequence: self.counters.sequence,
            steps: self.counters.steps,
            emission: self.emission.state(),
            trainer: self.trainer.state()?,
        }))
    }

    /// Continues from a saved state; call this before the first step. A state that does not fit is refused and has no
    /// effect.
    pub(super) fn restore(&mut self, state: State) -> Result<(), StateError> {
        self.trainer.restore(state.trainer)?;
        self.counters.steps = state.steps;
        self.emission.restore(&state.emission);
        // A new origin numbers its batches from 1.
        if state.origin == self.identity.origin {
            self.counters.sequence = state.sequence;
        }
        Ok(())
    }

    /// Takes the answer to an order to save the worker's own state, if such an order is pending and the state can be
    /// saved now: not while the worker waits to drop its difference from the shared weights (`drops`). The answer is
    /// sent in order with the batches, so its reader knows between which two batches the state was taken.
    pub(super) fn answer_save(&mut self, is_closed: bool, drops: bool) -> Result<Option<FromTraining>, TrainingError> {
        let Some(path) = self.saves.pop() else {
            return Ok(None);
        };
        let state = if is_closed || drops { None } else { self.state()? };
        if state.is_none() && !is_closed {
            self.saves.push(path);
            return Ok(None);
        }
        let state = state.map(Box::new);
        Ok(Some(FromTraining::State { path, state }))
    }

    /// Returns the answer to an order to finish the run: the digest of the weights and, if ordered, a copy of them.
    pub(super) fn finished(
        &self,
        order: Option<SaveOrder>,
        scores: Option<Scores>,
    ) -> Result<FromTraining, TrainingError> {
        let save = match order {
            Some(order) => Some((order, self.trainer.copy_weights()?)),
            None => None,
        };
        let digest = self.trainer.digest()?;
        Ok(FromTraining::Finished { digest, save, scores })
    }

    /// Compares the weights with their digest at long intervals; at shorter ones, returns the norm of the residual to
    /// report.
    pub(super) fn check(&mut self, now: Duration) -> Result<Option<FromTraining>, TrainingError> {
        if now.saturating_sub(self.audited) >= AUDIT_EVERY {
            self.audited = now;
            self.audit()?;
        }
        if now.saturating_sub(self.norm_told) < NORM_EVERY {
            return Ok(None);
        }
        self.norm_told = now;
        Ok(Some(FromTraining::ResidualNorm(self.trainer.residual_norm()?)))
    }

    /// Ends this worker's stream of batches (its origin) with a last batch in this round. That batch ends the run for
    /// all if `can_stop`, and if the worker was told to stop. The remaining residual is dropped.
    pub(super) fn close(&mut self, round: u64, can_stop: bool) -> Result<Closing, TrainingError> {
        self.audit()?;
        // With `keep = "best"`, workers close by order when all is trained; that must not stop the other workers.
        let all_trained = self.job.keep == Keep::Best && self.plan.is_complete();
        let status = OriginStatus {
            round,
            last: true,
            stop: can_stop && self.ending.stops_the_run() && !all_trained,
            ..OriginStatus::default()
        };
        let mut encoded = Vec::new();
        self.write_batch_now(Payload::default(), status, &mut encoded)?;
        let residual_norm = self.trainer.residual_norm()?;
        Ok(Closing { encoded, residual_norm })
    }

    /// Recomputes the digest of the weights and compares it with the digest of the batches. A difference means that
    /// this replica is corrupted.
    pub(super) fn audit(&self) -> Result<(), TrainingError> {
        self.applied.audit(self.trainer.digest()?)
    }

    /// Returns the cause of a failed step: either the run has diverged, which ends it for all, or this worker's memory
    /// is corrupted.
    pub(super) fn blame(&self, error: TrainError) -> TrainingError {
        match error {
            // Such a step has moved no shared weight, so these can be audited.
            TrainError::NotFinite | TrainError::Range(_) => self.audit().err().unwrap_or(error.into()),
            TrainError::Device(_) | TrainError::Module(_) | TrainError::Violation(_) | TrainError::Unheard => {
                error.into()
            }
        }
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_ending()
    }

    /// True if the next step need not emit a batch, because a later batch can still count its samples.
    pub(super) fn can_throttle(&self) -> bool {
        self.emission.can_keep() && self.pending.may_grow()
    }

    /// Returns the learning rate and the clipping norm of the next step, after the learning-rate schedule and the
    /// staleness guard, which shortens steps when other workers' batches arrive late.
    ///
    /// If steps follow the size of the gradient, the guard lowers the clipping norm and not the rate. That shortens
    /// only long steps, which overshoot early in a run; a lower rate would slow down the rest of the run because of
    /// them.
    pub(super) fn rate_and_clip(&self) -> (f64, Option<f64>) {
        let Settings {
            optimiser,
            clip,
            is_guarded,
            ..
        } = self.settings;
        let rate = optimiser.learning_rate * self.job.lr_schedule.factor(self.applied.progress());
        let guard = if is_guarded { self.applied.guard_factor() } else { 1.0 };
        match clip {
            Some(norm) if optimiser.rule.follows_gradient_size() => (rate, Some(norm * guard)),
            // Orthogonal updates of several workers spread over many directions: together they overshoot less.
            clip if matches!(optimiser.rule, Rule::Muon(_)) => (rate * guard.sqrt(), clip),
            clip => (rate * guard, clip),
        }
    }

    /// Decides if a batch leaves after the next step, whose minibatch advances these positions in shards.
    pub(super) fn plan_step(&mut self, learning_rate: f64, throttle: bool, cursors: &[CursorAdvance]) -> Plan {
        self.emission.plan(NextStep {
            learning_rate,
            throttle,
            must_leave: !self.pending.may_grow(),
            ends_epoch: self.plan.ends_epoch() || self.pending.is_of_another_epoch(cursors),
        })
    }

    /// Returns the trainer's settings for the step that is about to be made. Call it after the step was counted,
    /// because the settings contain the step's number.
    pub(super) fn control(&self, learning_rate: f64, clip: Option<f64>, compare: Option<Tau>) -> StepControl {
        StepControl {
            rule: self.settings.optimiser.rule,
            learning_rate,
            weight_decay: f64::from(self.settings.optimiser.weight_decay),
            clip,
            look_ahead: self.settings.look_ahead,
            turns: self.settings.turns,
            step: self.counters.steps,
            compare,
        }
    }

    /// Makes the record of a training step for reports, from the trainer's report and the number of samples trained.
    pub(super) fn step_of(&self, report: &StepReport, samples: usize, throttled: bool) -> Step {
        Step {
            loss: report.loss,
            samples,
            changes: 0,
            throttled,
            tau: None,
            range: report.range,
            staleness: self.staleness(),
            training_time: report.training_time,
            directions: report.directions,
            gpu: report.gpu,
        }
    }

    /// Takes the contents of the batch that leaves after a step out of the residual (learned, not sent yet).
    pub(super) fn leave(&mut self, compare: Option<Tau>, changes: Vec<u32>) -> Result<Leaving, TrainingError> {
        let left = self.emission.leave(&mut self.trainer, compare, changes);
        left.map_err(|error| self.blame(error))
    }

    /// Takes the next batch that the emission (the rule for sending) still wants to send although there is nothing to
    /// train; `None` if there is none.
    fn rest(&mut self) -> Result<Option<Leaving>, TrainingError> {
        if !matches!(self.ending, Ending::No | Ending::Stop | Ending::Leaving(_)) {
            return Ok(None);
        }
        let rest = self.emission.rest(&mut self.trainer);
        rest.map_err(|error| self.blame(error))
    }

    /// Takes the contents of the next batch of a worker that is ending; `None` if it has nothing left to send.
    fn leave_for_good(&mut self) -> Result<Option<Leaving>, TrainingError> {
        let left = self.ending.next(&mut self.trainer, self.emission.keeps_residual());
        left.map_err(|error| self.blame(error))
    }

    /// Handles the case that there is nothing to train: writes a batch of this round with the remaining difference, or
    /// one that counts the samples of steps not counted yet.
    pub(super) fn pause(&mut self, round: u64, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        let mut left = self.rest()?;
        if left.is_none() && self.is_ending() {
            if self.ending.stands_by() {
                return Ok(Next::Waiting);
            }
            left = self.leave_for_good()?;
            if left.is_none() {
                return Ok(Next::Done);
            }
        }
        // With `keep = "best"`, the node says when a worker may close.
        if left.is_none() && self.plan.is_complete() && self.job.keep == Keep::Last {
            return Ok(Next::Done);
        }
        // Samples that no batch counts yet can only be trained by this worker: others would wait for it while it waits
        // for them.
        let counts_pending =
            self.emission.weighting().is_none() && !self.pending.is_empty() && !planted::keeps_last_cursors();
        if left.is_none() && !counts_pending {
            return Ok(Next::Waiting);
        }
        let mut step = Step::without_samples(self.staleness());
        let payload = match left {
            Some(left) => {
                step.left(&left);
                left.payload
            }
            None => Payload::default(),
        };
        let status = OriginStatus {
            round,
            ..OriginStatus::default()
        };
        self.write_batch_now(payload, status, encoded)?;
        Ok(Next::Emitted(step))
    }

    /// Writes a batch that was not computed from samples, such as one of a leaving worker's residual. It counts as
    /// computed at the present weights, so it is not stale.
    pub(super) fn write_batch_now(
        &mut self,
        payload: Payload,
        status: OriginStatus,
        encoded: &mut Vec<u8>,
    ) -> Result<(), TrainingError> {
        self.counters.seen = self.applied.batches();
        self.write_batch(payload, status, encoded)
    }

    /// Writes a batch to `encoded`. Its header counts the samples of all steps since the last batch.
    pub(super) fn write_batch(
        &mut self,
        payload: Payload,
        status: OriginStatus,
        encoded: &mut Vec<u8>,
    ) -> Result<(), TrainingError> {
        let loss = self.pending.mean_loss();
        let Pending { cursors, samples, .. } = std::mem::take(&mut self.pending);
        self.counters.sequence += 1;
        let header = Header {
            run: self.identity.run,
            origin: self.identity.origin,
            sequence: self.counters.sequence,
            seen: self.counters.seen,
            digest: payload.digest(),
            cursors,
            samples,
            loss,
            status,
        };
        header.encode(&payload, encoded)?;
        if let Payload::Steps { changes, .. } = payload {
            // The next step reuses the vector, to save an allocation.
            self.changes = changes;
        }
        self.plan.batch_left();
        self.applied.count_own(&header);
        Ok(())
    }

    /// Applies another worker's batch, which was decoded and so is valid.
    ///
    /// If this drives a weight out of the range, the run has diverged, even where the node's ledger (its exact copy of
    /// the weights) could apply the same batch: this worker's weights may already contain changes of its own that have
    /// not reached the ledger.
    pub(super) fn apply(&mut self, batch: &Batch) -> Result<Range, TrainingError> {
        self.count(&batch.header);
        Ok(self.trainer.add(&batch.payload)?)
    }

    /// Applies a bundle: one batch of each of several other workers, as one sum.
    pub(super) fn apply_bundle(&mut self, bundle: &Bundle) -> Result<Range, TrainingError> {
        bundle.headers.iter().for_each(|header| self.count(header));
        Ok(self.trainer.shift(&bundle.dense)?)
    }

    /// Moves the weights by the sum of many batches, to catch up with other workers.
    pub(super) fn jump(&mut self, sums: &Sums, order: &JumpOrder) -> Result<Range, TrainingError> {
        match order.origin {
            Some(origin) => self.plan.observe_many(origin, &order.cursors),
            None => self.plan.skip_done(&order.cursors),
        }
        self.applied.jump(sums, order);
        Ok(self.trainer.jump(sums)?)
    }

    /// Adds another worker's batch to the totals and records the samples that it trained.
    fn count(&mut self, header: &Header) {
        self.applied.count(header);
        self.plan.observe(header.origin, &header.cursors);
    }
}
