//! The result of one step of a training loop.

use std::time::Duration;

use protocol::log::batch::Payload;
use protocol::weights::lattice::{Range, Tau};

use crate::emission::Leaving;
use crate::trainer::GpuUse;

/// The outcome of one call of a training loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// A step was made and its batch written.
    Emitted(Step),
    /// A step was made without a batch: its changes stay in the residual, and a later batch counts its samples.
    Kept(Step),
    /// A step was made, and the worker's prefix for a sequential averaging step is written in place of a batch.
    Passed(Step),
    /// There is nothing to train now, but messages from other workers may change that.
    Waiting,
    /// Everything is trained, or the run is to end: the origin can be closed.
    Done,
}

/// The record of one step, without its batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Mean loss of the minibatch.
    pub loss: f32,
    /// Number of samples in the minibatch.
    pub samples: usize,
    /// Number of changes that left.
    pub changes: usize,
    /// True if no batch left because the node has enough to send.
    pub throttled: bool,
    /// Size of the changes that left, for batches of ±τ.
    pub tau: Option<Tau>,
    /// Alarm if a shared weight is beyond ±8.
    pub range: Range,
    /// Average staleness of other workers' batches when they arrive, in rounds.
    pub staleness: f64,
    /// The part of the step's thread time that is training; the rest is exchange.
    pub training_time: Duration,
    /// The part of `training_time` in which updates were made orthogonal.
    pub directions: Duration,
    /// Use of the GPU in the step.
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

    /// Records the contents of the batch that leaves with the step.
    pub(super) fn left(&mut self, Leaving { payload, range }: &Leaving) {
        self.changes = payload.len();
        self.range = self.range.max(*range);
        if let Payload::Steps { tau, .. } = payload {
            self.tau = Some(*tau);
        }
    }
}
