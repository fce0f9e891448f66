//! The training loops of one worker: decide which samples come next, the step length, and which batches leave.
//!
//! [`Training`] trains a whole network and [`StageTraining`] a stage of one, in a pipeline with other workers. Neither
//! knows threads or reads a clock: every event is a call.

mod applied;
mod ending;
mod error;
mod farewell;
mod finish;
mod learner;
mod messages;
mod minibatches;
mod pending;
mod planted;
mod round;
mod sequential_averaging;
mod stage_training;
pub mod state_file;
mod step;
pub mod thread;
mod throttle;

use std::time::Duration;

use protocol::ids::{OriginId, RunId};
use protocol::job::{Job, RoundWeighting};
use protocol::log::batch::{Batch, OriginStatus, Payload, RoundPhase};
use protocol::log::cursor::Cursors;
use protocol::weights::dense::Dense;
use protocol::weights::lattice::Range;
use protocol::wire::attach::{GoOn, Missing};

pub use self::error::TrainingError;
use self::learner::Learner;
pub use self::messages::{Closing, FromTraining, StepTime, ToTraining};
use self::minibatches::Minibatches;
use self::pending::Pending;
use self::round::{Advance, Round};
pub use self::stage_training::{StageProgress, StageTraining};
pub use self::step::{Next, Step};
pub(crate) use self::throttle::Throttle;
use crate::dataset::Dataset;
use crate::emission::Plan;
use crate::trainer::{StateError, TrainError, Trainer, TrainerState};

/// Time for which a worker waits before it looks again if too many of its batches are still queued.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Time for which a worker with nothing to do waits for the next message before it waits again.
const FOR_EVER: Duration = Duration::from_hours(1);
/// Interval at which a worker reports the norm of its residual, learned and not sent yet.
const NORM_EVERY: Duration = Duration::from_secs(1);
/// Interval at which a worker compares its weights with their digest: short enough to lose little work, and the check
/// takes a thousandth of the time even for large models.
const AUDIT_EVERY: Duration = Duration::from_secs(30);

/// Identity of a worker in its run, by which it gets samples and names its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub run: RunId,
    /// Name of this life of the worker, which its batches carry.
    pub origin: OriginId,
    /// Number of the worker in its run, by which samples are dealt to it.
    pub slot: usize,
    pub slots: usize,
    /// Number of workers that began the run, including those that do not train. They have the lowest slots.
    pub founders: usize,
}

impl Identity {
    /// Returns the identity of the only worker of a run, for tests and benchmarks.
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

/// A worker's own state right after one of its batches: everything that its node's ledger does not contain.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    pub origin: OriginId,
    /// Sequence number of the worker's batch after which the state was taken; 0 before its first batch.
    pub sequence: u64,
    /// Number of steps so far, from which optimisers with a correction for the first steps count on.
    pub steps: u64,
    /// Internal numbers of the rule that decides which changes leave (emission), such as τ.
    pub emission: Vec<f64>,
    /// Residual (learned, not sent yet) and optimiser state.
    pub trainer: TrainerState,
}

/// Numbers of steps and batches that a worker has made so far.
#[derive(Debug, Default)]
struct Counters {
    steps: u64,
    /// Sequence number of the worker's last batch.
    sequence: u64,
    /// Number of batches that the weights contained when the newest finished gradient was computed; batches carry it in
    /// their headers, so that receivers know their staleness.
    seen: u64,
}

/// The training of a worker that holds a whole network.
pub struct Training<T> {
    learner: Learner<T>,
    minibatches: Minibatches,
    round: Round,
}

impl<T: Trainer> Training<T> {
    /// Creates the training of a worker at the start of a run.
    pub fn new(trainer: T, job: &Job, dataset: &Dataset, identity: Identity) -> Result<Self, TrainingError> {
        let learner = Learner::new(trainer, job, dataset.train.classes(), identity, Duration::ZERO)?;
        Ok(Self {
            round: Round::new(&learner.job, dataset.train.len()),
            minibatches: Minibatches::default(),
            learner,
        })
    }

    pub fn trainer(&self) -> &T {
        &self.learner.trainer
    }

    /// Returns the number of samples in applied batches of all workers.
    #[must_use]
    pub fn samples_applied(&self) -> u64 {
        self.learner.applied.samples()
    }

    /// Returns the average staleness of other workers' batches when they are applied here, in rounds of one batch from
    /// every worker.
    #[must_use]
    pub fn staleness(&self) -> f64 {
        self.learner.staleness()
    }

    /// Continues in the middle of a run: `cursors` are the samples done, and the trainer's weights already contain this
    /// many batches and samples.
    pub fn resume(&mut self, cursors: &Cursors, batches: u64, samples: u64) {
        self.learner.resume(cursors, batches, samples);
    }

    /// Joins the rounds of a run in progress. `newest` is the newest round, and `workers` is the number of workers that
    /// make the next one together.
    pub fn join_rounds(&mut self, newest: u64, workers: u32) {
        self.round.begin(newest);
        self.learner.emission.go_on(workers);
    }

    /// Takes the answer to an order to save the worker's own state, if one is pending and the state can be saved now.
    fn answer_save(&mut self, is_closed: bool) -> Result<Option<FromTraining>, TrainingError> {
        self.learner.answer_save(is_closed, self.round.drops())
    }

    /// Continues from a saved state; call this before the first step. A state that does not fit is refused and has no
    /// effect.
    pub fn restore(&mut self, state: State) -> Result<(), StateError> {
        self.learner.restore(state)
    }

    /// Handles a message that the thread's loop does not handle itself.
    fn hear(&mut self, event: ToTraining) -> Result<(), TrainingError> {
        match event {
            ToTraining::GoOn(order) => self.go_on(order),
            ToTraining::GoOnPassing(prefix) => self.go_on_passing(prefix.as_deref()),
            event => self.learner.hear(event),
        }
    }

    /// True if the next step need not emit a batch, because a later batch can still count its samples.
    #[must_use]
    pub fn can_throttle(&self) -> bool {
        self.learner.can_throttle()
    }

    /// Makes the next step. If a batch leaves after it, its bytes are appended to `encoded`. A throttled step emits no
    /// batch, if that is possible.
    pub fn step(&mut self, throttle: bool, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        // A worker that leaves first completes the round in which others count on it.
        if !self.is_ending() || self.learner.ending.is_leaving() {
            if self.round.waits() {
                return Ok(Next::Waiting);
            }
            if self.round.is_due() {
                self.learner.counters.seen = self.learner.applied.batches();
                let step = Step::without_samples(self.staleness());
                return self.contribute(step, encoded);
            }
        }
        if self.is_ending() || !self.next_minibatch() {
            return self.pause(encoded);
        }
        self.round.set_idle(false);
        let throttle = throttle && self.can_throttle();
        let (learning_rate, clip) = self.learner.rate_and_clip();
        let cursors = &self.minibatches.present().cursors;
        let plan = self.learner.plan_step(learning_rate, throttle, cursors);
        let compare = match plan {
            Plan::Keep => None,
            Plan::Leave { compare } => compare,
        };
        self.learner.counters.steps += 1;
        let batches = self.learner.applied.batches();
        self.learner.counters.seen = self.minibatches.take_begun_at().unwrap_or(batches);
        let control = self.learner.control(learning_rate, clip, compare);
        let minibatch = self.minibatches.present();
        let samples = minibatch.indices.len();
        self.learner.pending.add_samples(&minibatch.cursors, samples);
        // Batches that arrive while this worker waits for a round are then in the next gradient.
        let round = self.learner.emission.weighting().filter(|_| plan != Plan::Keep);
        let passes = plan == Plan::Keep && self.learner.emission.passes();
        if round.is_none() && !passes {
            self.announce_next(plan == Plan::Keep);
        }
        let minibatch = self.minibatches.present();
        let report = self
            .learner
            .trainer
            .step(&minibatch.indices, control, &mut self.learner.changes)
            .map_err(|error| self.learner.blame(error))?;
        self.learner.pending.add_loss(samples, report.loss);
        let mut step = self.learner.step_of(&report, samples, throttle);
        if let Some(weighting) = round {
            return self.arrive(step, weighting, encoded);
        }
        if passes {
            return self.send_prefix(step, encoded);
        }
        if plan == Plan::Keep {
            return Ok(Next::Kept(step));
        }
        let changes = std::mem::take(&mut self.learner.changes);
        let left = self.learner.leave(compare, changes)?;
        step.left(&left);
        self.write_batch(left.payload, OriginStatus::default(), encoded)?;
        Ok(Next::Emitted(step))
    }

    /// Handles the case that there is nothing to train, for now or for good: sends a batch that counts steps not
    /// counted yet, then waits or is done.
    fn pause(&mut self, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        match self.learner.pause(self.round.number(), encoded)? {
            Next::Waiting if !self.is_ending() => self.say_idle(encoded),
            next => Ok(next),
        }
    }

    /// Moves on to the next minibatch. Returns `false` if there is none now.
    fn next_minibatch(&mut self) -> bool {
        let cursors_max = self.learner.pending.cursors_left();
        self.minibatches.advance(&mut self.learner.plan, cursors_max)
    }

    /// Chooses the minibatch after the present one early, so that a device can begin with it right behind the present
    /// step. `keeps` says that no batch leaves after this step, so that its samples still wait to be counted by a later
    /// one.
    fn announce_next(&mut self, keeps: bool) {
        if !T::BEGINS {
            return;
        }
        // If this step's batch leaves, it counts all pending work, and the next minibatch can use all cursors.
        let nothing = Pending::default();
        let pending = if keeps { &self.learner.pending } else { &nothing };
        let (cursors_max, batches) = (pending.cursors_left(), self.learner.applied.batches());
        let early = self
            .minibatches
            .choose_early(&mut self.learner.plan, cursors_max, batches);
        if let Some(samples) = early {
            self.learner.trainer.announce(samples, self.learner.counters.steps + 1);
        }
    }

    /// Ends this worker's stream of batches (its origin) with a last batch. The remaining residual is dropped.
    fn close(&mut self) -> Result<Closing, TrainingError> {
        self.learner.close(self.round.number(), true)
    }

    /// Returns the samples that this worker waits for when it has nothing to train: other workers have them.
    #[must_use]
    pub fn missing(&self) -> Vec<Missing> {
        self.learner.plan.missing()
    }

    /// True if the worker, when it waits, waits for samples and not for other workers' rounds.
    pub fn is_starved(&self) -> bool {
        !self.round.waits() && !self.is_ending()
    }

    /// True if there are samples to train now.
    pub fn has_more(&mut self) -> bool {
        self.minibatches.is_chosen() || self.learner.plan.has_more()
    }

    /// Returns the status for a batch to carry: the given one, with the number of this worker's present round.
    fn status(&self, status: OriginStatus) -> OriginStatus {
        OriginStatus {
            round: self.round.number(),
            ..status
        }
    }

    fn write_batch(
        &mut self,
        payload: Payload,
        status: OriginStatus,
        encoded: &mut Vec<u8>,
    ) -> Result<(), TrainingError> {
        let status = self.status(status);
        self.learner.write_batch(payload, status, encoded)
    }

    /// Applies another worker's batch, which was decoded and so is valid.
    pub fn apply(&mut self, batch: &Batch) -> Result<Range, TrainingError> {
        self.learner.apply(batch)
    }

    fn is_ending(&self) -> bool {
        self.learner.is_ending()
    }

    /// True if the worker has reached the end of a round and waits for the others.
    #[must_use]
    pub fn waits_for_round(&self) -> bool {
        self.round.waits()
    }

    /// Goes on in a round, because all workers that this one waits for have reached the same point of it: emits the
    /// contribution, or begins the next round.
    pub fn go_on(&mut self, order: GoOn) -> Result<(), TrainingError> {
        match self.round.go_on(&order) {
            Advance::Nothing => {}
            Advance::Contribute => {
                if let Some(contribution) = order.contribution {
                    self.learner.emission.agree(contribution);
                }
            }
            Advance::NextRound { lost } => {
                self.learner.emission.go_on(order.workers);
                if lost {
                    return_to_shared(&mut self.learner.trainer)?;
                }
            }
        }
        Ok(())
    }

    /// Ends a round of this worker: emits its contribution, or first announces its loss if contributions depend on the
    /// losses of all.
    fn arrive(&mut self, step: Step, weighting: RoundWeighting, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        if !weighting.depends_on_losses() {
            self.round.arrive();
            return self.contribute(step, encoded);
        }
        let loss = match weighting {
            RoundWeighting::Best => self.score()?,
            RoundWeighting::Mean | RoundWeighting::Weighted | RoundWeighting::First => self.learner.pending.mean_loss(),
        };
        self.round.arrive();
        self.round.told_loss();
        // The batch with the contribution counts the samples.
        let pending = std::mem::replace(&mut self.learner.pending, Pending::of_loss(loss));
        let status = OriginStatus {
            round_phase: RoundPhase::Announces,
            ..OriginStatus::default()
        };
        self.write_batch(Payload::default(), status, encoded)?;
        self.learner.pending = pending;
        Ok(Next::Emitted(step))
    }

    /// Emits this worker's contribution to a round: a fraction of the difference between its own and the shared
    /// weights.
    fn contribute(&mut self, mut step: Step, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        let left = self.learner.leave(None, Vec::new())?;
        step.left(&left);
        self.round.contributed(left.payload.is_empty());
        self.write_batch(left.payload, OriginStatus::default(), encoded)?;
        Ok(Next::Emitted(step))
    }

    /// Returns the loss of the worker's own weights on probe samples, which are the same for all workers.
    fn score(&mut self) -> Result<f32, TrainingError> {
        let minibatch = self.learner.job.minibatch as usize;
        let mut sum = 0.0;
        for samples in self.round.probe().chunks(minibatch) {
            let loss = self
                .learner
                .trainer
                .loss(samples)
                .map_err(|error| self.learner.blame(error))?;
            sum += f64::from(loss) * samples.len() as f64;
        }
        Ok((sum / self.round.probe().len().max(1) as f64) as f32)
    }

    /// Announces once that this worker has nothing to train, so that others do not wait for its next round.
    fn say_idle(&mut self, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        if self.learner.emission.weighting().is_none() || self.round.set_idle(true) {
            return Ok(Next::Waiting);
        }
        let status = self.status(OriginStatus {
            round_phase: RoundPhase::Idle,
            ..OriginStatus::default()
        });
        self.learner.write_batch_now(Payload::default(), status, encoded)?;
        Ok(Next::Emitted(Step::without_samples(self.staleness())))
    }

    /// Begins a sequential averaging step: writes this worker's difference from the shared weights, to which its node
    /// adds those of the workers before it, and waits for the mean to go on from.
    fn send_prefix(&mut self, step: Step, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        let state = self.learner.trainer.state()?;
        let pass = self.round.begin_pass();
        let prefix = sequential_averaging::own_prefix(
            &state,
            pass,
            self.learner.applied.digest(),
            self.learner.identity.origin,
        )
        .map_err(|error| self.learner.blame(error))?;
        let contents = prefix.encode().map_err(|error| TrainError::Device(error.to_string()))?;
        encoded.extend(contents);
        Ok(Next::Passed(step))
    }

    /// Continues after a sequential averaging step. `prefix` is the sum of workers' differences and their number;
    /// without it the worker goes on from its own weights.
    pub fn go_on_passing(&mut self, prefix: Option<&(Dense, u32)>) -> Result<(), TrainingError> {
        let waits = self.round.end_pass();
        if let Some((sum, workers)) = prefix.filter(|_| waits) {
            let mut state = self.learner.trainer.state()?;
            if sequential_averaging::replace_by_mean(&mut state, sum, *workers) {
                let restored = self.learner.trainer.restore(state);
                restored.map_err(|error| TrainError::Device(error.to_string()))?;
            }
        }
        Ok(())
    }
}

/// Returns the worker's own weights to the shared ones by clearing the residual, which is in the first two arrays of a
/// trainer's state. The optimiser's state stays: its knowledge of gradients also holds near by.
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
