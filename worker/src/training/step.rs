//! The result of one step of a training loop.

use std::time::Duration;

use protocol::log::batch::Payload;
use protocol::weights::lattice::{Range, Tau};

use crate::emission::Leaving;
use crate::trainer::GpuUse;

/// Outcome of one call of a training loop: the step that was made, or the reason why none was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// Outcome of a call: a step was made, and its batch was written.
    Emitted(Step),
    /// Outcome of a call: a step was made without a batch. Its changes stay in the residual, and a later batch counts
    /// its samples.
    Kept(Step),
    /// Outcome of a call: a step was made, and the worker's difference from the shared weights is written for a
    /// sequential averaging step, in place of a batch.
    Passed(Step),
    /// Outcome of a call: there is nothing to train now, but messages from other workers may change that.
    Waiting,
    /// Outcome of a call: everything is trained, or the run is to end. The worker's stream of batches can be ended.
    Done,
}

/// Record of one training step for reports, without its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Mean loss of the minibatch.
    pub loss: f32,
    /// Number of samples in the minibatch.
    pub samples: usize,
    /// Number of weight changes in the batch that left after the step.
    pub changes: usize,
    /// True if no batch left because the node has enough to send.
    pub throttled: bool,
    /// Size τ of the weight changes that left, for batches of ±τ.
    pub tau: Option<Tau>,
    /// Result of the range check after the step: an alarm if a shared weight is beyond ±8.
    pub range: Range,
    /// Average staleness of other workers' batches when they arrive, in rounds.
    pub staleness: f64,
    /// The part of the step's thread time that is training; the rest is exchange.
    pub training_time: Duration,
    /// Part of the step's `training_time` in which the optimiser made updates orthogonal.
    pub directions: Duration,
    /// Time and memory that the step took on the GPU.
    pub gpu: GpuUse,
}

impl Step {
    /// Creates the record of a batch that leaves without a training step.
    pub(super) fn without_samples(staleness: f64) -> Self {
        Self {
            staleness,
            ..Self::default()
        }
    }

    /// Completes the step's record with the batch that leaves after it: the number and the size τ of its changes, and
    /// the result of its range check.
    pub(super) fn left(&mut self, Leaving { payload, range }: &Leaving) {
        self.changes = payload.len();
        self.range = self.range.max(*range);
        if let Payload::Steps { tau, .. } = payload {
            self.tau = Some(*tau);
        }
    }
}
