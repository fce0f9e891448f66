//! The training loop of one worker: which samples come next, how large the step is, and what leaves as a batch.
//!
//! Knows no threads and no clock. Everything that happens is a call: another origin's batch is applied, a step is
//! made, the origin is closed.

mod applying;
mod ending;
mod error;
mod farewell;
mod in_pipeline;
mod pending;
mod planted;
mod rounds;
mod sequential_averaging;
mod step;

use std::sync::Arc;

use protocol::batch::{Header, OriginStatus, Payload};
use protocol::cursor::{CursorAdvance, Cursors};
use protocol::digest::Digest;
use protocol::ids::{OriginId, RunId};
use protocol::job::{Job, Keep};
use protocol::optimiser::Rule;
use protocol::wire::attach::Missing;

use self::ending::Ending;
pub use self::error::TrainingError;
use self::in_pipeline::{Choice, Upcoming};
use self::pending::Pending;
use self::rounds::Round;
pub use self::step::{Next, Step};
use crate::dataset::Dataset;
use crate::emission::{self, Emission, NextStep, Plan};
use crate::learning::multi_worker::Settings;
use crate::learning::staleness_guard::StalenessGuard;
use crate::sampling::plan::{SamplePlan, SharedPlan};
use crate::trainer::{StateError, StepControl, TrainError, Trainer, TrainerState};

/// Which worker this is, of which run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub run: RunId,
    /// This incarnation of the worker.
    pub origin: OriginId,
    /// Its place among the run's workers.
    pub slot: usize,
    /// How many workers the run has.
    pub slots: usize,
    /// The slots of the workers that began the run, trainers or not.
    pub founders: usize,
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
            founders: 1,
        }
    }
}

/// What a worker alone has, as it was right after a batch of its own: all that its node's ledger does not tell.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub origin: OriginId,
    /// The number of that batch; 0 before the first.
    pub sequence: u64,
    /// The steps made so far: optimisers that correct for the first of them count on.
    pub steps: u64,
    /// The emission's own numbers.
    pub emission: Vec<f64>,
    /// Residual and optimiser.
    pub trainer: TrainerState,
}

/// One worker's training.
pub struct Training<T> {
    trainer: T,
    job: Job,
    identity: Identity,
    plan: SamplePlan,
    /// How it learns as one of so many workers.
    settings: Settings,
    /// What leaves, and when.
    emission: Box<dyn Emission<T>>,
    guard: StalenessGuard,
    /// The last batch's number.
    sequence: u64,
    steps: u64,
    /// Work that the next batch will count.
    pending: Pending,
    /// What the weights' digest is to be: that of the first weights and of all batches since.
    expected: Digest,
    /// Batches in the weights, other origins' included.
    batches_applied: u64,
    /// Samples in applied batches, other origins' included: what schedules follow.
    samples_applied: u64,
    samples_total: u64,
    ending: Ending,
    round: Round,
    /// Samples on which workers compare themselves, where the best one's weights count.
    probe: Vec<u32>,
    /// The next minibatch is chosen already, and its device may be at it.
    chosen: bool,
    /// Minibatches after that one, which a pipeline may have begun.
    upcoming: Upcoming,
    /// Somebody of its pipeline is missing, so that others take its samples.
    stands_alone: bool,
    /// How many batches were in the weights when the device began with that minibatch, if it has.
    begun_at: Option<u64>,
    /// How many batches were in the weights that the newest finished gradient was computed at; a batch's header says it.
    seen: u64,
    indices: Vec<u32>,
    cursors: Vec<CursorAdvance>,
    changes: Vec<u32>,
}

impl<T: Trainer> Training<T> {
    /// Training from the start of a run.
    pub fn new(trainer: T, job: &Job, dataset: &Dataset, identity: Identity) -> Result<Self, TrainingError> {
        let classes = dataset.train.classes();
        let shared = SharedPlan {
            split: job.split,
            seed: job.seed,
            labels: Arc::clone(&classes),
            slots: identity.slots,
            balanced: job.balanced,
            dealt_once: job.dealt_once,
            epochs: job.epochs,
            minibatch: job.step_samples() as usize,
            claims_after_batches: job.exchange.has_rounds_of_an_epoch(),
            trainers: job.trainers,
            founders: identity.founders,
        };
        let samples_total = classes.len() as u64 * u64::from(job.epochs);
        let job = &Job {
            optimiser: job.optimiser.for_steps(samples_total / u64::from(job.step_samples())),
            ..job.clone()
        };
        let emission = emission::of(job, trainer.weights(), identity.slots);
        Ok(Self {
            expected: trainer.digest()?.unwrap_or_default(),
            plan: SamplePlan::new(shared, identity.slot)?.of_origin(identity.origin),
            samples_total,
            job: job.clone(),
            trainer,
            settings: emission.settings(job, identity.slots),
            emission,
            identity,
            guard: StalenessGuard::default(),
            sequence: 0,
            steps: 0,
            pending: Pending::default(),
            batches_applied: 0,
            samples_applied: 0,
            ending: Ending::No,
            round: Round::default(),
            probe: rounds::probe(job, classes.len()),
            chosen: false,
            upcoming: Upcoming::default(),
            stands_alone: false,
            begun_at: None,
            seen: 0,
            indices: Vec::new(),
            cursors: Vec::new(),
            changes: Vec::new(),
        })
    }

    /// The share of the run's samples that are in applied batches.
    #[must_use]
    pub fn progress(&self) -> f64 {
        self.samples_applied as f64 / self.samples_total.max(1) as f64
    }

    /// Samples in applied batches, other origins' included.
    #[must_use]
    pub fn samples_applied(&self) -> u64 {
        self.samples_applied
    }

    /// How stale others' batches are when they are applied here: the batches that came between, in rounds of one batch
    /// from every worker, averaged. 0 where nothing arrives.
    #[must_use]
    pub fn staleness(&self) -> f64 {
        self.guard.batches() / self.identity.slots.max(1) as f64
    }

    /// Goes on from a ledger in the middle of a run: which samples are done, and how many batches and samples the
    /// trainer's weights already hold.
    pub fn resume(&mut self, cursors: &Cursors, batches: u64, samples: u64) {
        self.plan.skip_done(cursors);
        self.batches_applied = batches;
        self.samples_applied = samples;
    }

    /// Comes to a run in rounds, of which this is the newest and so many workers make the next.
    pub fn join_rounds(&mut self, newest: u64, workers: u32) {
        self.round.begin(newest);
        self.emission.go_on(workers);
    }

    /// What this worker alone has. `None` while steps were made that no batch counts yet: their samples would be trained
    /// again and still be in the residual. Nor while it waits to drop what it has. The next batches that leave change that.
    pub fn state(&self) -> Result<Option<State>, TrainingError> {
        if !self.pending.is_empty() || self.round.drops() {
            return Ok(None);
        }
        Ok(Some(State {
            origin: self.identity.origin,
            sequence: self.sequence,
            steps: self.steps,
            emission: self.emission.state(),
            trainer: self.trainer.state()?,
        }))
    }

    /// Goes on from what a worker had alone; to be said before the first step. What does not fit is refused and has no
    /// effect.
    pub fn restore(&mut self, state: State) -> Result<(), StateError> {
        self.trainer.restore(state.trainer)?;
        self.steps = state.steps;
        self.emission.restore(&state.emission);
        // A new origin has a count of its own.
        if state.origin == self.identity.origin {
            self.sequence = state.sequence;
        }
        Ok(())
    }

    /// Recomputes the digest of the weights. One that differs from what it is to be convicts this replica, whatever the
    /// others have.
    pub fn audit(&self) -> Result<(), TrainingError> {
        let found = self.trainer.digest()?;
        if found == Some(self.expected) {
            return Ok(());
        }
        Err(TrainingError::Spoilt {
            expected: self.expected,
            found: found.map_or_else(
                || "none, because a weight is not a multiple of 2^-20 below 16".into(),
                |digest| digest.to_string(),
            ),
        })
    }

    /// What is to blame for a step that failed: a run that has diverged, which ends it for all, or the memory of this
    /// worker alone.
    fn blame(&self, error: TrainError) -> TrainingError {
        match error {
            // Such a step has moved no shared weight, so these can be audited.
            TrainError::NotFinite | TrainError::Range(_) => self.audit().err().unwrap_or(error.into()),
            TrainError::Device(_) | TrainError::PipelineBroken | TrainError::Unheard => error.into(),
        }
    }

    /// An origin sends no batches any more, so that what it began is free; or it does so again.
    pub fn origin(&mut self, origin: OriginId, alive: bool) {
        if alive {
            self.plan.origin_alive(origin);
        } else {
            self.plan.origin_dead(origin);
        }
    }

    /// A slot has lost its worker, or has one again.
    pub fn slot(&mut self, slot: usize, alive: bool) {
        if slot == self.identity.slot {
            self.stands_alone = !alive;
        }
        if alive {
            self.plan.slot_alive(slot);
        } else {
            self.plan.slot_dead(slot);
        }
    }

    /// Whether another step can be made without a batch: the next one must be able to count its samples.
    #[must_use]
    pub fn can_throttle(&self) -> bool {
        self.emission.can_keep() && self.pending.may_grow()
    }

    /// Makes the next step. If a batch leaves after it, its bytes are appended to `encoded`. A throttled step lets
    /// nothing leave, where that can be.
    pub fn step(&mut self, throttle: bool, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        // A worker that leaves first ends the round that others count on it for.
        if !self.is_ending() || self.is_leaving() {
            if self.round.waits() {
                return Ok(Next::Waiting);
            }
            if let Some(delivered) = self.deliver_due(encoded) {
                return delivered;
            }
        }
        match self.choice_in_pipeline()? {
            Choice::Own if self.is_ending() || !self.next_minibatch() => return self.pause(encoded),
            Choice::Over => return self.pause(encoded),
            Choice::None => return Ok(Next::Waiting),
            Choice::Own | Choice::Led => {}
        }
        self.round.is_idle = false;
        let throttle = throttle && self.can_throttle();
        let (learning_rate, clip) = self.pipeline_rate_and_clip();
        let plan = self.emission.plan(NextStep {
            learning_rate,
            throttle,
            must_leave: !self.pending.may_grow(),
            ends_epoch: self.plan.ends_epoch() || self.pending.is_of_another_epoch(&self.cursors),
        });
        let compare = match plan {
            Plan::Keep => None,
            Plan::Leave { compare } => compare,
        };
        self.steps += 1;
        self.seen = self.begun_at.take().unwrap_or(self.batches_applied);
        let control = StepControl {
            rule: self.settings.optimiser.rule,
            learning_rate,
            weight_decay: f64::from(self.settings.optimiser.weight_decay),
            clip,
            look_ahead: self.settings.look_ahead,
            turns: self.settings.turns,
            step: self.steps,
            compare,
        };
        self.tell_pipeline(&control);
        let report = match self.trainer.step(&self.indices, control, &mut self.changes) {
            Err(TrainError::PipelineBroken) => return Ok(self.led_in_vain()),
            report => report.map_err(|error| self.blame(error))?,
        };
        self.pending.add(&self.cursors, self.indices.len(), report.loss);
        self.follow_plan();
        let mut step = Step {
            loss: report.loss,
            samples: self.counted_samples(),
            changes: 0,
            throttled: throttle,
            tau: None,
            range: report.range,
            staleness: self.staleness(),
            training_time: report.training_time,
            directions: report.directions,
            gpu: report.gpu,
        };
        // What comes while others are waited for is to be in the next gradient.
        if plan != Plan::Keep
            && let Some(weighting) = self.emission.weighting()
        {
            return self.arrive(step, weighting, encoded);
        }
        if plan == Plan::Keep && self.emission.passes() {
            return self.pass_on(step, encoded);
        }
        self.begin_next(plan == Plan::Keep)?;
        if plan == Plan::Keep {
            return Ok(Next::Kept(step));
        }
        let changes = std::mem::take(&mut self.changes);
        let left = self.emission.leave(&mut self.trainer, compare, changes);
        let left = left.map_err(|error| self.blame(error))?;
        step.left(&left);
        self.write_batch(left.payload, OriginStatus::default(), encoded)?;
        Ok(Next::Emitted(step))
    }

    /// There is nothing to train, for now or for good: what the emission still owes leaves.
    fn pause(&mut self, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        if matches!(self.ending, Ending::No | Ending::Stop | Ending::Leaving(_)) {
            let rest = self.emission.rest(&mut self.trainer);
            if let Some(left) = rest.map_err(|error| self.blame(error))? {
                return self.emit_rest(left, encoded).map(Next::Emitted);
            }
        }
        if self.is_ending() {
            return self.end(encoded);
        }
        // Where the best weights are kept, a worker's node says when it may close.
        if self.plan.is_complete() && self.job.keep == Keep::Last {
            return Ok(Next::Done);
        }
        // Nobody else may train the samples that no batch counts yet: others would wait for a worker that waits with
        // them.
        if self.emission.weighting().is_none() && !self.pending.is_empty() && !planted::keeps_last_cursors() {
            self.seen = self.batches_applied;
            self.write_batch(Payload::default(), OriginStatus::default(), encoded)?;
            return Ok(Next::Emitted(Step::without_samples(self.staleness())));
        }
        self.say_idle(encoded)
    }

    /// The next minibatch, and the samples that it counts. `false` if there is none now.
    fn next_minibatch(&mut self) -> bool {
        let most = self.cursors_max().min(self.pending.cursors_left());
        std::mem::take(&mut self.chosen) || self.take_ahead() || self.choose_for_pipeline(most)
    }

    pub(super) fn choose(&mut self, cursors_max: usize) -> bool {
        self.plan
            .next_minibatch(cursors_max, &mut self.indices, &mut self.cursors)
    }

    /// Chooses the next minibatch, so that a device can begin with it while this step's batch is made.
    fn begin_next(&mut self, keeps: bool) -> Result<(), TrainError> {
        if !T::BEGINS {
            return Ok(());
        }
        // What is not kept leaves with this step's batch, and the next minibatch has all cursors to itself.
        let nothing = Pending::default();
        let pending = if keeps { &self.pending } else { &nothing };
        self.chosen = self.choose(pending.cursors_left());
        if self.chosen {
            self.trainer.begin(&self.indices, self.steps + 1)?;
            self.begun_at = Some(self.batches_applied);
        }
        Ok(())
    }

    /// Appends the batch that closes this origin. It holds no changes: what is left in the residual is dropped.
    pub fn close(&mut self, encoded: &mut Vec<u8>) -> Result<(), TrainingError> {
        if let Some(pipeline) = self.trainer.pipeline() {
            pipeline.close()?;
        }
        self.seen = self.batches_applied;
        let status = OriginStatus {
            last: true,
            // Where the best weights are kept, workers are told to close when all is trained: nobody is to stop for that.
            stop: self.is_ending() && self.may_say_stop() && !(self.job.keep == Keep::Best && self.plan.is_complete()),
            ..OriginStatus::default()
        };
        self.write_batch(Payload::default(), status, encoded)
    }

    /// The samples that this worker waits for, where it has nothing to train: they are in the hands of others.
    #[must_use]
    pub fn missing(&self) -> Vec<Missing> {
        self.plan.missing()
    }

    /// Whether it waits for samples, and not for others' rounds or the messages of a pipeline.
    pub fn is_starved(&mut self) -> bool {
        !self.round.waits() && !self.is_ending() && !self.is_in_pipeline()
    }

    /// Whether there is a minibatch to train now.
    pub fn has_more(&mut self) -> bool {
        self.chosen || self.plan.has_more()
    }

    /// The trainer, for what can be asked of it between steps.
    pub fn trainer(&self) -> &T {
        &self.trainer
    }

    /// The learning rate and the norm for the next step, both after schedule and guard.
    ///
    /// The guard lowers the norm where that shortens steps: it is the long ones that overshoot, early in a run, and
    /// lowering the rate would slow down the rest of the run for them.
    fn rate_and_clip(&self) -> (f64, Option<f64>) {
        let Settings {
            optimiser,
            clip,
            is_guarded,
            ..
        } = self.settings;
        let rate = optimiser.learning_rate * self.job.lr_schedule.factor(self.progress());
        let guard = if is_guarded { self.guard.factor() } else { 1.0 };
        match clip {
            Some(norm) if optimiser.rule.follows_gradient_size() => (rate, Some(norm * guard)),
            // Orthogonal updates of several workers spread over many directions: together they overshoot less.
            clip if matches!(optimiser.rule, Rule::Muon(_)) => (rate * guard.sqrt(), clip),
            clip => (rate * guard, clip),
        }
    }

    fn write_batch(
        &mut self,
        payload: Payload,
        status: OriginStatus,
        encoded: &mut Vec<u8>,
    ) -> Result<(), TrainingError> {
        let loss = self.pending.mean_loss();
        let Pending { cursors, samples, .. } = std::mem::take(&mut self.pending);
        self.sequence += 1;
        let header = Header {
            run: self.identity.run,
            origin: self.identity.origin,
            sequence: self.sequence,
            seen: self.seen,
            digest: payload.digest(),
            cursors,
            samples,
            loss,
            status: OriginStatus {
                round: self.round.number,
                ..status
            },
        };
        header.encode(&payload, encoded)?;
        if let Payload::Steps { changes, .. } = payload {
            // The next step fills them again, without taking memory.
            self.changes = changes;
        }
        self.plan.batch_left();
        self.expected += header.digest;
        self.samples_applied += u64::from(samples);
        self.batches_applied += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
