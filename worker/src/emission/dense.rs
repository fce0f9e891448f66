//! A dense emission: every so many steps, the whole difference leaves.
//!
//! Nothing is chosen and nothing is compressed: every weight that has moved by half a grid step or more is in the batch.
//! What rounding takes stays in the residual. A model with more weights than a batch holds sums is told in windows that
//! take turns.

use protocol::batch::Payload;
use protocol::encoding::SUMS_MAX;
use protocol::job::Job;
use protocol::lattice::Tau;

use super::{Emission, Leaving, NextStep, Plan};
use crate::learning::multi_worker::Settings;
use crate::trainer::{TrainError, Trainer};

/// The whole difference, every so many steps.
pub(super) struct Dense {
    every: u32,
    weights: usize,
    /// Steps since the last batch.
    steps: u32,
    /// The window that leaves next.
    window: usize,
    /// Windows that have not left since the last step.
    untold: usize,
}

impl Dense {
    pub(super) fn new(every: u32, weights: usize) -> Self {
        Self {
            every,
            weights,
            steps: 0,
            window: 0,
            untold: 0,
        }
    }

    fn windows(&self) -> usize {
        self.weights.div_ceil(SUMS_MAX).max(1)
    }

    /// What leaves of the next window.
    fn take_turn<T: Trainer>(&mut self, trainer: &mut T) -> Result<Leaving, TrainError> {
        let first = self.window * SUMS_MAX;
        self.window = (self.window + 1) % self.windows();
        self.untold = self.untold.saturating_sub(1);
        self.steps = 0;
        let (sums, range) = trainer.take(first..(first + SUMS_MAX).min(self.weights))?;
        let payload = Payload::Sums(sums);
        Ok(Leaving { payload, range })
    }
}

impl<T: Trainer> Emission<T> for Dense {
    fn settings(&self, job: &Job, slots: usize) -> Settings {
        Settings::adding_up(job, slots)
    }

    fn can_keep(&self) -> bool {
        true
    }

    fn plan(&mut self, next: NextStep) -> Plan {
        self.steps += 1;
        self.untold = self.windows();
        let is_due = self.steps >= self.every || next.must_leave;
        if is_due && !next.hold_back {
            Plan::Leave { compare: None }
        } else {
            Plan::Keep
        }
    }

    fn leave(&mut self, trainer: &mut T, _compared: Option<Tau>, _words: Vec<u32>) -> Result<Leaving, TrainError> {
        self.take_turn(trainer)
    }

    fn rest(&mut self, trainer: &mut T) -> Result<Option<Leaving>, TrainError> {
        (self.untold > 0).then(|| self.take_turn(trainer)).transpose()
    }

    fn state(&self) -> Vec<f64> {
        vec![self.window as f64]
    }

    fn restore(&mut self, state: &[f64]) {
        if let [window] = state {
            // What is no number becomes 0.
            self.window = *window as usize % self.windows();
        }
    }
}
