//! Rounds: a worker that has let out its contribution waits until the others' are in the weights.
//!
//! Where contributions follow losses, it tells its own first, and waits until the others have told theirs.

use protocol::batch::{OriginStatus, Payload, RoundPhase};
use protocol::job::{Job, RoundWeighting};
use protocol::rng::CounterRng;
use protocol::wire::attach::GoOn;

use super::pending::Pending;
use super::{Next, Step, Training, TrainingError};
use crate::trainer::{TrainError, Trainer, TrainerState};

/// Samples on which workers compare themselves. A pass over them costs as much as eight steps of 64 samples.
const PROBE: usize = 512;
const PROBE_STREAM: u64 = 0x7072_6f62;

/// How far a worker is in the rounds that all make together. Their numbers are labels: whoever has missed some goes on with
/// the newest.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The last one that it has come to.
    pub(super) number: u64,
    /// The newest that its node has heard of.
    newest: u64,
    wait: Wait,
    /// The passes of this round that it has come to.
    pass: u64,
    /// It has said that it has nothing to train.
    pub(super) is_idle: bool,
}

/// What a worker waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wait {
    #[default]
    Nothing,
    /// It has told its loss, and the others are to tell theirs.
    Losses,
    /// They have: its contribution is due.
    Due,
    /// It has come to a pass, and goes on from the mean of those before it.
    Prefix,
    /// Its contribution is out, and the others' are to come.
    RoundWeighting {
        /// What it has come to since the round before counts for nothing.
        lost: bool,
    },
}

impl Round {
    /// A worker that comes to a run whose newest round is this.
    pub(super) fn begin(&mut self, newest: u64) {
        self.newest = newest;
    }

    /// Whether a worker does nothing until it hears of the others.
    pub(super) fn waits(&self) -> bool {
        matches!(self.wait, Wait::Losses | Wait::Prefix | Wait::RoundWeighting { .. })
    }

    /// Comes to the next pass, and waits; which one that is.
    pub(super) fn begin_pass(&mut self) -> u64 {
        self.wait = Wait::Prefix;
        let pass = self.pass;
        self.pass += 1;
        pass
    }

    /// Goes on with a pass, if it waits for that.
    pub(super) fn end_pass(&mut self) -> bool {
        let waits = self.wait == Wait::Prefix;
        if waits {
            self.wait = Wait::Nothing;
        }
        waits
    }

    /// Whether a worker waits to drop what it has come to.
    pub(super) fn drops(&self) -> bool {
        self.wait == Wait::RoundWeighting { lost: true }
    }

    fn arrive(&mut self, wait: Wait) {
        self.number = self.number.saturating_add(1).max(self.newest);
        self.wait = wait;
        self.pass = 0;
    }
}

impl<T: Trainer> Training<T> {
    /// Whether it has come to a round and waits for the others.
    #[must_use]
    pub fn waits_for_round(&self) -> bool {
        self.round.waits()
    }

    /// All others that are waited for have come as far in this round.
    pub fn go_on(&mut self, order: GoOn) -> Result<(), TrainingError> {
        if order.round != self.round.number {
            return Ok(());
        }
        match (self.round.wait, order.contribution) {
            (Wait::Losses, Some(contribution)) => {
                self.emission.agree(contribution);
                self.round.wait = Wait::Due;
            }
            (Wait::RoundWeighting { lost }, None) => {
                self.round.wait = Wait::Nothing;
                self.round.newest = order.newest;
                self.emission.go_on(order.workers);
                if lost {
                    return_to_shared(&mut self.trainer)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Has come to a round: lets out its contribution, or tells its loss first.
    pub(super) fn arrive(
        &mut self,
        step: Step,
        weighting: RoundWeighting,
        encoded: &mut Vec<u8>,
    ) -> Result<Next, TrainingError> {
        if !weighting.depends_on_losses() {
            self.round.arrive(Wait::RoundWeighting { lost: false });
            return self.deliver(step, encoded);
        }
        let loss = match weighting {
            RoundWeighting::Best => self.score()?,
            RoundWeighting::Mean | RoundWeighting::Weighted | RoundWeighting::First => self.pending.mean_loss(),
        };
        self.round.arrive(Wait::Losses);
        // What was trained is counted by the batch that holds its contribution.
        let pending = std::mem::take(&mut self.pending);
        self.pending = Pending::of_loss(loss);
        let status = OriginStatus {
            round_phase: RoundPhase::Announces,
            ..OriginStatus::default()
        };
        self.write_batch(Payload::default(), status, encoded)?;
        self.pending = pending;
        Ok(Next::Emitted(step))
    }

    /// Lets out a contribution that is due, if one is.
    pub(super) fn deliver_due(&mut self, encoded: &mut Vec<u8>) -> Option<Result<Next, TrainingError>> {
        if self.round.wait != Wait::Due {
            return None;
        }
        self.seen = self.batches_applied;
        let step = Step::without_samples(self.staleness());
        Some(self.deliver(step, encoded))
    }

    fn deliver(&mut self, mut step: Step, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        let left = self.emission.leave(&mut self.trainer, None, Vec::new());
        let left = left.map_err(|error| self.blame(error))?;
        step.left(&left);
        self.round.wait = Wait::RoundWeighting {
            lost: left.payload.is_empty(),
        };
        self.write_batch(left.payload, OriginStatus::default(), encoded)?;
        Ok(Next::Emitted(step))
    }

    /// The loss of its own weights on samples that are the same for all.
    fn score(&mut self) -> Result<f32, TrainingError> {
        let minibatch = self.job.minibatch as usize;
        let mut sum = 0.0;
        for samples in self.probe.chunks(minibatch) {
            let loss = self.trainer.loss(samples).map_err(|error| self.blame(error))?;
            sum += f64::from(loss) * samples.len() as f64;
        }
        Ok((sum / self.probe.len().max(1) as f64) as f32)
    }

    /// Says once that there is nothing to train, so that nobody waits for the next round.
    pub(super) fn say_idle(&mut self, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        if self.emission.weighting().is_none() || std::mem::replace(&mut self.round.is_idle, true) {
            return Ok(Next::Waiting);
        }
        self.seen = self.batches_applied;
        let status = OriginStatus {
            round_phase: RoundPhase::Idle,
            ..OriginStatus::default()
        };
        self.write_batch(Payload::default(), status, encoded)?;
        Ok(Next::Emitted(Step::without_samples(self.staleness())))
    }
}

/// The samples on which workers compare themselves, where the best one's weights count: the same for all.
pub(super) fn probe(job: &Job, samples: usize) -> Vec<u32> {
    if job.exchange.weighting() != Some(RoundWeighting::Best) {
        return Vec::new();
    }
    let mut random = CounterRng::new(job.seed, PROBE_STREAM);
    let drawn = (0..PROBE.min(samples)).map(|_| random.below(samples as u64) as u32);
    drawn.collect()
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
