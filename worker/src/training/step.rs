//! What one step did.

use std::time::Duration;

use protocol::log::batch::Payload;
use protocol::weights::lattice::{Range, Tau};

use crate::emission::Leaving;
use crate::trainer::GpuUse;

/// How training went on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// A step was made and its batch written.
    Emitted(Step),
    /// A step was made; what would have left stays in the residual, and its samples are counted by the next batch.
    Kept(Step),
    /// A step was made, and what this worker adds to a pass is written in place of a batch.
    Passed(Step),
    /// There is nothing to train now, but there may be when others are heard of again.
    Waiting,
    /// Everything is trained, or the run is to end: the origin can be closed.
    Done,
}

/// What one step did, beside the batch it wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// The mean loss of its minibatch.
    pub loss: f32,
    /// How many samples that had.
    pub samples: usize,
    /// The changes that left.
    pub changes: usize,
    /// Whether nothing left because the node has enough to send.
    pub throttled: bool,
    /// The size of the changes that left, if it is one.
    pub tau: Option<Tau>,
    /// How far out the weights are.
    pub range: Range,
    /// How stale others' batches are when they arrive, in rounds.
    pub staleness: f64,
    /// The part of its thread time that is training; the rest is exchange.
    pub training_time: Duration,
    /// The part of that in which updates were made orthogonal.
    pub directions: Duration,
    /// What a GPU did for it.
    pub gpu: GpuUse,
}

impl Step {
    /// A batch that leaves without one.
    pub(super) fn without_samples(staleness: f64) -> Self {
        Self {
            staleness,
            ..Self::default()
        }
    }

    /// This leaves with it.
    pub(super) fn left(&mut self, Leaving { payload, range }: &Leaving) {
        self.changes = payload.len();
        self.range = self.range.max(*range);
        if let Payload::Steps { tau, .. } = payload {
            self.tau = Some(*tau);
        }
    }
}
