//! Emission in rounds: after a fixed number of steps, or after every epoch, a worker's whole difference leaves as one
//! batch.
//!
//! The difference is neither filtered nor compressed: a batch holds every weight that has moved by at least half a
//! lattice step. Workers that wait for each other each emit a contribution, so that these add up to the mean of all
//! differences, or to a mean weighted by losses; then each worker goes on from there. Workers that do not wait emit the
//! whole difference. Rounding errors stay in the residual. If a model has more weights than one batch can hold, it is
//! emitted in windows that take turns.

use protocol::job::{Job, RoundLength, RoundTopology, RoundWeighting, Rounds};
use protocol::log::batch::Payload;
use protocol::weights::encoding::DENSE_MAX;
use protocol::weights::lattice::{Range, Tau};

use super::{Emission, Leaving, NextStep, Plan};
use crate::learning::multi_worker::Settings;
use crate::trainer::{TrainError, Trainer};
use protocol::weights::contribution::Contribution;

/// Emission for strategies with rounds: at the end of every round, a worker sends the whole difference between its own
/// and the shared weights or, if contributions are weighted, a fraction of it.
pub(super) struct InRounds {
    rounds: Rounds,
    weights: usize,
    /// Number of workers whose contributions are combined in this round.
    workers: u32,
    /// Fraction of the difference between its own and the shared weights that the worker sends in this round; it
    /// follows from the losses of all workers. `None` until these are known, and after the fraction was used.
    agreed: Option<Contribution>,
    steps: u32,
    /// True if an epoch has ended since the worker's last batch. In rounds that last an epoch, this ends the round, and
    /// the worker sends its next batch.
    ended_epoch: bool,
    /// Index of the window of weights that leaves in the next batch; a large model is sent in several windows, one per
    /// batch.
    window: usize,
    /// Number of windows of weights that have not been sent since the worker's last step.
    untold: usize,
}

impl InRounds {
    /// Creates the rule by which a worker sends its weight changes in rounds, for a run of `slots` workers and a model
    /// of `weights` weights.
    pub(super) fn new(rounds: Rounds, weights: usize, slots: usize) -> Self {
        Self {
            rounds,
            weights,
            workers: slots as u32,
            agreed: None,
            steps: 0,
            ended_epoch: false,
            window: 0,
            untold: 0,
        }
    }

    fn windows(&self) -> usize {
        self.weights.div_ceil(DENSE_MAX).max(1)
    }

    /// Makes the batch with the worker's contribution to a round for the next window of weights. It takes the agreed
    /// fraction of the difference between own and shared weights out of that window.
    fn take_turn<T: Trainer>(&mut self, trainer: &mut T) -> Result<Leaving, TrainError> {
        let first = self.window * DENSE_MAX;
        self.window = (self.window + 1) % self.windows();
        self.untold = self.untold.saturating_sub(1);
        self.steps = 0;
        self.ended_epoch = false;
        let contribution = match self.rounds.weighting {
            // After the last step no losses are exchanged, so every worker counts the same.
            Some(_) => self.agreed.take().unwrap_or(Contribution::of_one_in(self.workers)),
            None => Contribution::ALL,
        };
        if contribution == Contribution::NOTHING {
            return Ok(Leaving {
                payload: Payload::default(),
                range: Range::Safe,
            });
        }
        let (dense, range) = trainer.take(first..(first + DENSE_MAX).min(self.weights), contribution)?;
        let payload = Payload::Dense(dense);
        Ok(Leaving { payload, range })
    }
}

impl<T: Trainer> Emission<T> for InRounds {
    fn settings(&self, job: &Job, slots: usize) -> Settings {
        match self.rounds.weighting {
            Some(_) => Settings::alone(job),
            None => Settings::adding_up(job, slots),
        }
    }

    fn can_keep(&self) -> bool {
        true
    }

    fn plan(&mut self, next: NextStep) -> Plan {
        self.steps += 1;
        self.ended_epoch |= next.ends_epoch;
        self.untold = self.windows();
        let is_over = match self.rounds.every {
            // In `stepwise`, this length is the number of steps between two sequential averaging passes.
            RoundLength::Steps(_) if self.rounds.topology == RoundTopology::Stepwise => self.ended_epoch,
            RoundLength::Steps(steps) => self.steps >= steps,
            RoundLength::Epoch => self.ended_epoch,
        };
        let is_due = is_over || next.must_leave;
        if is_due && !next.throttle {
            Plan::Leave { compare: None }
        } else {
            Plan::Keep
        }
    }

    fn leave(&mut self, trainer: &mut T, _compared: Option<Tau>, _changes: Vec<u32>) -> Result<Leaving, TrainError> {
        self.take_turn(trainer)
    }

    fn weighting(&self) -> Option<RoundWeighting> {
        self.rounds.weighting
    }

    fn passes(&mut self) -> bool {
        match self.rounds.every {
            RoundLength::Steps(steps) => {
                self.rounds.topology == RoundTopology::Stepwise && self.steps.is_multiple_of(steps)
            }
            RoundLength::Epoch => false,
        }
    }

    fn agree(&mut self, contribution: Contribution) {
        self.agreed = Some(contribution);
    }

    fn go_on(&mut self, workers: u32) {
        self.workers = workers;
    }

    fn rest(&mut self, trainer: &mut T) -> Result<Option<Leaving>, TrainError> {
        (self.untold > 0).then(|| self.take_turn(trainer)).transpose()
    }

    fn state(&self) -> Vec<f64> {
        vec![self.window as f64]
    }

    fn restore(&mut self, state: &[f64]) {
        if let [window] = state {
            // The cast turns a value that is not a number into 0.
            self.window = *window as usize % self.windows();
        }
    }
}
