//! The training loop of one worker: which samples come next, how large the step is, and what leaves as a batch.
//!
//! Knows no threads and no clock. Everything that happens is a call: another origin's batch is applied, a step is
//! made, the origin is closed.

mod applied;
mod ending;
mod error;
mod farewell;
mod minibatches;
mod pending;
mod pipeline_part;
mod planted;
mod round;
mod sequential_averaging;
mod step;

use std::sync::Arc;

use protocol::batch::{Batch, Header, OriginStatus, Payload, RoundPhase};
use protocol::bundle::Bundle;
use protocol::cursor::Cursors;
use protocol::dense::Dense;
use protocol::ids::{OriginId, RunId};
use protocol::job::{Job, Keep, RoundWeighting};
use protocol::lattice::Range;
use protocol::measured::Scores;
use protocol::optimiser::Rule;
use protocol::sums::Sums;
use protocol::wire::attach::{GoOn, JumpOrder, Missing};

use self::applied::Applied;
use self::ending::Ending;
pub use self::error::TrainingError;
use self::minibatches::Minibatches;
use self::pending::Pending;
use self::pipeline_part::{Choice, PipelinePart, Role, leads};
use self::round::{Advance, Round};
pub use self::step::{Next, Step};
use crate::dataset::Dataset;
use crate::emission::{self, Emission, Leaving, NextStep, Plan};
use crate::learning::multi_worker::Settings;
use crate::pipeline::PipelineEvent;
use crate::sampling::plan::{SamplePlan, SharedPlan};
use crate::trainer::{StateError, StepControl, StepReport, TrainError, Trainer, TrainerState};

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
    /// The settings of learning as one of several workers.
    settings: Settings,
    /// What leaves, and when.
    emission: Box<dyn Emission<T>>,
    plan: SamplePlan,
    minibatches: Minibatches,
    pipeline: PipelinePart,
    round: Round,
    applied: Applied,
    counters: Counters,
    /// Work that the next batch will count.
    pending: Pending,
    ending: Ending,
    changes: Vec<u32>,
}

/// A worker's own steps and batches, counted.
#[derive(Debug, Default)]
struct Counters {
    steps: u64,
    /// The last batch's number.
    sequence: u64,
    /// The number of batches that were in the weights that the newest finished gradient was computed at; a batch's header
    /// says it.
    seen: u64,
}

impl<T: Trainer> Training<T> {
    /// Training from the start of a run.
    pub fn new(mut trainer: T, job: &Job, dataset: &Dataset, identity: Identity) -> Result<Self, TrainingError> {
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
        let first = trainer.digest()?.unwrap_or_default();
        Ok(Self {
            plan: SamplePlan::new(shared, identity.slot)?.of_origin(identity.origin),
            minibatches: Minibatches::default(),
            pipeline: PipelinePart::new(Role::of(trainer.pipeline())),
            round: Round::new(job, classes.len()),
            applied: Applied::new(first, samples_total),
            settings: emission.settings(job, identity.slots),
            job: job.clone(),
            trainer,
            identity,
            emission,
            counters: Counters::default(),
            pending: Pending::default(),
            ending: Ending::No,
            changes: Vec::new(),
        })
    }

    /// The trainer, for questions between steps.
    pub fn trainer(&self) -> &T {
        &self.trainer
    }

    /// The fraction of the run's samples that are in applied batches.
    #[must_use]
    pub fn progress(&self) -> f64 {
        self.applied.progress()
    }

    /// Samples in applied batches, other origins' included.
    #[must_use]
    pub fn samples_applied(&self) -> u64 {
        self.applied.samples()
    }

    /// How stale others' batches are when they are applied here: the batches that came between, in rounds of one batch
    /// from every worker, averaged. 0 where nothing arrives.
    #[must_use]
    pub fn staleness(&self) -> f64 {
        self.applied.staleness() / self.identity.slots.max(1) as f64
    }

    /// Goes on from a ledger in the middle of a run: which samples are done, and how many batches and samples the
    /// trainer's weights already hold.
    pub fn resume(&mut self, cursors: &Cursors, batches: u64, samples: u64) {
        self.plan.skip_done(cursors);
        self.applied.resume(batches, samples);
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
            sequence: self.counters.sequence,
            steps: self.counters.steps,
            emission: self.emission.state(),
            trainer: self.trainer.state()?,
        }))
    }

    /// Goes on from what a worker had alone; to be said before the first step. What does not fit is refused and has no
    /// effect.
    pub fn restore(&mut self, state: State) -> Result<(), StateError> {
        self.trainer.restore(state.trainer)?;
        self.counters.steps = state.steps;
        self.emission.restore(&state.emission);
        // A new origin has a count of its own.
        if state.origin == self.identity.origin {
            self.counters.sequence = state.sequence;
        }
        Ok(())
    }

    /// Recomputes the digest of the weights. One that differs from what it is to be convicts this replica, whatever the
    /// others have.
    pub fn audit(&self) -> Result<(), TrainingError> {
        self.applied.audit(self.trainer.digest()?)
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
            self.pipeline.stands_alone = !alive;
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
        if !self.is_ending() || self.ending.is_leaving() {
            if self.round.waits() {
                return Ok(Next::Waiting);
            }
            if self.round.is_due() {
                self.counters.seen = self.applied.batches();
                let step = Step::without_samples(self.staleness());
                return self.contribute(step, encoded);
            }
        }
        match self.choice()? {
            Choice::Own if self.is_ending() || !self.next_minibatch() => return self.pause(encoded),
            Choice::Over => return self.pause(encoded),
            Choice::None => return Ok(Next::Waiting),
            Choice::Own | Choice::Led => {}
        }
        self.round.set_idle(false);
        let throttle = throttle && self.can_throttle();
        let (learning_rate, clip) = self.rate_and_clip();
        let cursors = &self.minibatches.present().cursors;
        let plan = self.emission.plan(NextStep {
            learning_rate,
            throttle,
            must_leave: !self.pending.may_grow(),
            ends_epoch: self.plan.ends_epoch() || self.pending.is_of_another_epoch(cursors),
        });
        let compare = match plan {
            Plan::Keep => None,
            Plan::Leave { compare } => compare,
        };
        self.counters.steps += 1;
        self.counters.seen = self.minibatches.take_begun_at().unwrap_or(self.applied.batches());
        let control = StepControl {
            rule: self.settings.optimiser.rule,
            learning_rate,
            weight_decay: f64::from(self.settings.optimiser.weight_decay),
            clip,
            look_ahead: self.settings.look_ahead,
            turns: self.settings.turns,
            step: self.counters.steps,
            compare,
        };
        self.tell_pipeline(&control);
        let minibatch = self.minibatches.present();
        let report = match self.trainer.step(&minibatch.indices, control, &mut self.changes) {
            Err(TrainError::PipelineBroken) => {
                // The step has moved nothing here.
                self.counters.steps -= 1;
                self.minibatches.failed(self.pipeline.role == Role::Leader);
                return Ok(Next::Waiting);
            }
            report => report.map_err(|error| self.blame(error))?,
        };
        self.pending
            .add(&minibatch.cursors, minibatch.indices.len(), report.loss);
        match self.pipeline.role {
            Role::Alone => {}
            Role::Leader => self.plan.settle(&minibatch.cursors),
            // A follower's plan has chosen nothing, and learns what is done as from another's batches.
            Role::Follower => self.plan.observe(self.identity.origin, &minibatch.cursors),
        }
        let mut step = self.step_of(&report, throttle);
        // What comes while others are waited for is to be in the next gradient.
        if plan != Plan::Keep
            && let Some(weighting) = self.emission.weighting()
        {
            return self.arrive(step, weighting, encoded);
        }
        if plan == Plan::Keep && self.emission.passes() {
            return self.send_prefix(step, encoded);
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
                return self.emit(left, encoded).map(Next::Emitted);
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
            self.counters.seen = self.applied.batches();
            self.write_batch(Payload::default(), OriginStatus::default(), encoded)?;
            return Ok(Next::Emitted(Step::without_samples(self.staleness())));
        }
        self.say_idle(encoded)
    }

    /// Goes on to the next minibatch. Returns `false` if there is none now.
    fn next_minibatch(&mut self) -> bool {
        let role = self.pipeline.role;
        let cursors_max = role.cursors_max().min(self.pending.cursors_left());
        self.minibatches.advance(&mut self.plan, cursors_max, role)
    }

    /// Chooses the next minibatch, so that a device can begin with it while this step's batch is made.
    fn begin_next(&mut self, keeps: bool) -> Result<(), TrainError> {
        if !T::BEGINS {
            return Ok(());
        }
        // What is not kept leaves with this step's batch, and the next minibatch has all cursors to itself.
        let nothing = Pending::default();
        let pending = if keeps { &self.pending } else { &nothing };
        let (cursors_max, batches) = (pending.cursors_left(), self.applied.batches());
        match self.minibatches.choose_early(&mut self.plan, cursors_max, batches) {
            Some(samples) => self.trainer.begin(samples, self.counters.steps + 1),
            None => Ok(()),
        }
    }

    /// Appends the batch that closes this origin. It holds no changes: what is left in the residual is dropped.
    pub fn close(&mut self, encoded: &mut Vec<u8>) -> Result<(), TrainingError> {
        if let Some(pipeline) = self.trainer.pipeline() {
            pipeline.close()?;
        }
        self.counters.seen = self.applied.batches();
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
    pub fn is_starved(&self) -> bool {
        !self.round.waits() && !self.is_ending() && !self.is_in_pipeline()
    }

    /// Whether there is a minibatch to train now.
    pub fn has_more(&mut self) -> bool {
        self.minibatches.is_chosen() || self.plan.has_more()
    }

    /// The learning rate and the norm for the next step, both after schedule and guard.
    ///
    /// The guard lowers the norm where that shortens steps: it is the long ones that overshoot, early in a run, and
    /// lowering the rate would slow down the rest of the run for them.
    /// In a pipeline the leader's rate counts; and each stage's gradient is clipped by itself, to its part of the norm: the
    /// whole one would take a round trip in every step.
    fn rate_and_clip(&mut self) -> (f64, Option<f64>) {
        let Settings {
            optimiser,
            clip,
            is_guarded,
            ..
        } = self.settings;
        let rate = optimiser.learning_rate * self.job.lr_schedule.factor(self.progress());
        let guard = if is_guarded { self.applied.guard_factor() } else { 1.0 };
        let (rate, clip) = match clip {
            Some(norm) if optimiser.rule.follows_gradient_size() => (rate, Some(norm * guard)),
            // Orthogonal updates of several workers spread over many directions: together they overshoot less.
            clip if matches!(optimiser.rule, Rule::Muon(_)) => (rate * guard.sqrt(), clip),
            clip => (rate * guard, clip),
        };
        let Some(pipeline) = self.trainer.pipeline() else {
            return (rate, clip);
        };
        let rate = pipeline.next_lead().map_or(rate, |lead| lead.learning_rate);
        (rate, clip.map(|norm| norm / f64::from(pipeline.stages()).sqrt()))
    }

    fn write_batch(
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
            status: OriginStatus {
                round: self.round.number(),
                ..status
            },
        };
        header.encode(&payload, encoded)?;
        if let Payload::Steps { changes, .. } = payload {
            // The next step fills them again, without taking memory.
            self.changes = changes;
        }
        self.plan.batch_left();
        self.applied.count_own(&header);
        Ok(())
    }

    /// Applies another origin's batch, which was decoded and so is valid.
    ///
    /// A weight that others' changes drive out of the range has diverged, though the node's ledger has applied the same
    /// changes: this worker's own changes reach its weights before they reach the ledger.
    pub fn apply(&mut self, batch: &Batch) -> Result<Range, TrainingError> {
        self.count(&batch.header);
        Ok(self.trainer.add(&batch.payload)?)
    }

    /// Applies a batch from each of several other origins, as one.
    pub fn apply_bundle(&mut self, bundle: &Bundle) -> Result<Range, TrainingError> {
        bundle.headers.iter().for_each(|header| self.count(header));
        Ok(self.trainer.shift(&bundle.dense)?)
    }

    /// Moves the weights by the sum of many batches.
    pub fn jump(&mut self, sums: &Sums, order: &JumpOrder) -> Result<Range, TrainingError> {
        match order.origin {
            Some(origin) => self.plan.observe_many(origin, &order.cursors),
            None => self.plan.skip_done(&order.cursors),
        }
        self.applied.jump(sums, order);
        Ok(self.trainer.jump(sums)?)
    }

    /// Counts a batch of another origin.
    fn count(&mut self, header: &Header) {
        self.applied.count(header);
        self.plan.observe(header.origin, &header.cursors);
    }

    /// No further steps: the run is to end.
    pub fn stop(&mut self) {
        self.ending.stop();
    }

    /// No further steps, but the origin stays open.
    pub fn stand_by(&mut self) {
        self.ending.stand_by();
    }

    /// No further steps: the weights move back to these, which they were before. A worker that was told to stop does so.
    pub fn go_back(&mut self, weights: Vec<f32>) {
        self.ending.go_back(weights);
    }

    /// No further steps here: this worker leaves a run that goes on.
    pub fn leave(&mut self) {
        self.ending.leave();
    }

    fn is_ending(&self) -> bool {
        self.ending.is_ending()
    }

    /// A worker that does not train goes on to end.
    fn end(&mut self, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        if matches!(self.ending, Ending::StandingBy) {
            return Ok(Next::Waiting);
        }
        match self.ending.next(&mut self.trainer, self.emission.keeps_residual())? {
            Some(left) => self.emit(left, encoded).map(Next::Emitted),
            None => Ok(Next::Done),
        }
    }

    /// Writes a batch that leaves without a step.
    fn emit(&mut self, left: Leaving, encoded: &mut Vec<u8>) -> Result<Step, TrainingError> {
        let mut step = Step::without_samples(self.staleness());
        step.left(&left);
        self.counters.seen = self.applied.batches();
        self.write_batch(left.payload, OriginStatus::default(), encoded)?;
        Ok(step)
    }

    /// Whether this worker has come to a round and waits for the others.
    #[must_use]
    pub fn waits_for_round(&self) -> bool {
        self.round.waits()
    }

    /// All others that are waited for have come as far in this round.
    pub fn go_on(&mut self, order: GoOn) -> Result<(), TrainingError> {
        match self.round.go_on(&order) {
            Advance::Nothing => {}
            Advance::Contribute => {
                if let Some(contribution) = order.contribution {
                    self.emission.agree(contribution);
                }
            }
            Advance::NextRound { lost } => {
                self.emission.go_on(order.workers);
                if lost {
                    return_to_shared(&mut self.trainer)?;
                }
            }
        }
        Ok(())
    }

    /// Has come to a round: lets out its contribution, or tells its loss first.
    fn arrive(&mut self, step: Step, weighting: RoundWeighting, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        if !weighting.depends_on_losses() {
            self.round.arrive();
            return self.contribute(step, encoded);
        }
        let loss = match weighting {
            RoundWeighting::Best => self.score()?,
            RoundWeighting::Mean | RoundWeighting::Weighted | RoundWeighting::First => self.pending.mean_loss(),
        };
        self.round.arrive();
        self.round.told_loss();
        // The samples are counted by the batch that holds the contribution.
        let pending = std::mem::replace(&mut self.pending, Pending::of_loss(loss));
        let status = OriginStatus {
            round_phase: RoundPhase::Announces,
            ..OriginStatus::default()
        };
        self.write_batch(Payload::default(), status, encoded)?;
        self.pending = pending;
        Ok(Next::Emitted(step))
    }

    /// Lets out the contribution to a round.
    fn contribute(&mut self, mut step: Step, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        let left = self.emission.leave(&mut self.trainer, None, Vec::new());
        let left = left.map_err(|error| self.blame(error))?;
        step.left(&left);
        self.round.contributed(left.payload.is_empty());
        self.write_batch(left.payload, OriginStatus::default(), encoded)?;
        Ok(Next::Emitted(step))
    }

    /// The loss of its own weights on samples that are the same for all.
    fn score(&mut self) -> Result<f32, TrainingError> {
        let minibatch = self.job.minibatch as usize;
        let mut sum = 0.0;
        for samples in self.round.probe().chunks(minibatch) {
            let loss = self.trainer.loss(samples).map_err(|error| self.blame(error))?;
            sum += f64::from(loss) * samples.len() as f64;
        }
        Ok((sum / self.round.probe().len().max(1) as f64) as f32)
    }

    /// Says once that there is nothing to train, so that nobody waits for the next round.
    fn say_idle(&mut self, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        if self.emission.weighting().is_none() || self.round.set_idle(true) {
            return Ok(Next::Waiting);
        }
        self.counters.seen = self.applied.batches();
        let status = OriginStatus {
            round_phase: RoundPhase::Idle,
            ..OriginStatus::default()
        };
        self.write_batch(Payload::default(), status, encoded)?;
        Ok(Next::Emitted(Step::without_samples(self.staleness())))
    }

    /// Has come to an averaging step: writes what it adds, and waits.
    fn send_prefix(&mut self, step: Step, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        let state = self.trainer.state()?;
        let pass = self.round.begin_pass();
        let prefix = sequential_averaging::own_prefix(&state, pass, self.applied.digest(), self.identity.origin)?;
        let contents = prefix.encode().map_err(|error| TrainError::Device(error.to_string()))?;
        encoded.extend(contents);
        Ok(Next::Passed(step))
    }

    /// Goes on with an averaging step, from the mean of so many workers' differences if there is one.
    pub fn go_on_passing(&mut self, prefix: Option<&(Dense, u32)>) -> Result<(), TrainingError> {
        let waits = self.round.end_pass();
        if let Some((sum, workers)) = prefix.filter(|_| waits) {
            let mut state = self.trainer.state()?;
            if sequential_averaging::replace_by_mean(&mut state, sum, *workers) {
                let restored = self.trainer.restore(state);
                restored.map_err(|error| TrainError::Device(error.to_string()))?;
            }
        }
        Ok(())
    }

    /// The source of the next minibatch.
    fn choice(&mut self) -> Result<Choice, TrainingError> {
        let is_ending = self.is_ending();
        let Some(pipeline) = self.trainer.pipeline() else {
            return Ok(Choice::Own);
        };
        // A minibatch that was chosen and could not be trained is still to be, unless others have done so.
        if !pipeline.is_whole() && !self.plan.is_in_arrears() {
            self.minibatches.forget();
        }
        if self.pipeline.role == Role::Leader {
            if pipeline.is_whole() || is_ending || self.plan.is_complete() {
                return Ok(Choice::Own);
            }
            if let Some(ending) = self.pipeline.call(pipeline, self.identity.slots > 1)? {
                self.ending = ending;
            }
            return Ok(Choice::None);
        }
        if let Some(lead) = pipeline.next_lead() {
            self.minibatches.follow(lead);
            // The optimiser counts the leader's steps, whenever this worker came.
            self.counters.steps = lead.step.saturating_sub(1);
            return Ok(Choice::Led);
        }
        Ok(PipelinePart::follow(pipeline, is_ending))
    }

    /// Tells the others of the pipeline of a step, and of those after it that can be begun before it is done.
    fn tell_pipeline(&mut self, control: &StepControl) {
        let role = self.pipeline.role;
        let Some(pipeline) = self.trainer.pipeline().filter(|_| role == Role::Leader) else {
            return;
        };
        self.minibatches.choose_ahead(
            &mut self.plan,
            self.pipeline.begun_ahead(pipeline),
            role.cursors_max(),
            self.pending.cursors_left(),
            self.applied.batches(),
        );
        pipeline.tell(leads(control, &self.minibatches));
    }

    /// Whether some minibatch was begun that is not done.
    pub fn is_under_way(&mut self) -> bool {
        self.trainer.pipeline().is_some_and(|pipeline| pipeline.is_under_way())
    }

    /// Whether to begin nothing ahead, so that there is a moment at which nothing is under way.
    pub fn rest(&mut self, pauses: bool) {
        self.pipeline.pauses = pauses;
    }

    /// A message of the pipeline has come between two steps.
    pub fn hear(&mut self, message: PipelineEvent) -> Result<(), TrainingError> {
        Ok(self.trainer.hear(message)?)
    }

    /// Whether this worker holds a stage of a network only.
    pub fn is_in_pipeline(&self) -> bool {
        self.pipeline.role != Role::Alone
    }

    /// Whether this worker leads a pipeline.
    pub fn leads_pipeline(&self) -> bool {
        self.pipeline.role == Role::Leader
    }

    /// How good the weights of the whole pipeline are; none where this worker does not lead a whole one.
    pub fn measure(&mut self) -> Result<Option<Scores>, TrainingError> {
        let leads = self.leads_pipeline();
        let pipeline = self.trainer.pipeline().filter(|_| leads);
        if pipeline.is_none_or(|pipeline| !pipeline.is_whole()) {
            return Ok(None);
        }
        match self.trainer.measure() {
            Err(TrainError::PipelineBroken) => Ok(None),
            measured => Ok(measured?),
        }
    }

    /// Calls the others, if this worker leads a pipeline that is not whole. Returns whether that is so.
    pub fn calls(&mut self) -> Result<bool, TrainingError> {
        let leads = self.leads_pipeline();
        match self.trainer.pipeline() {
            Some(pipeline) if leads && !pipeline.is_whole() => {
                pipeline.join()?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Whether it is for this worker to say that the run is to end. Followers in a pipeline never do.
    fn may_say_stop(&self) -> bool {
        self.pipeline.role != Role::Follower && !matches!(self.ending, Ending::GaveUp | Ending::Leaving(_))
    }

    /// The record of a step.
    fn step_of(&self, report: &StepReport, throttled: bool) -> Step {
        let samples = match self.pipeline.role {
            Role::Alone | Role::Leader => self.minibatches.present().indices.len(),
            // The samples of a pipeline count once.
            Role::Follower => 0,
        };
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
}

/// Goes on from the shared weights: without a residual, of which the first two arrays of a state are made. The optimiser's
/// state is kept: what it knows of gradients holds near by, too.
fn return_to_shared<T: Trainer>(trainer: &mut T) -> Result<(), TrainError> {
    let TrainerState { numbers, mut arrays } = trainer.state()?;
    for array in arrays.iter_mut().take(2) {
        array.fill(0.0);
    }
    trainer
        .restore(TrainerState { numbers, arrays })
        .map_err(|error| TrainError::Device(error.to_string()))
}

#[cfg(test)]
mod tests;
