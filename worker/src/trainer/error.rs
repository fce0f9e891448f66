//! The reasons for which training fails, temporarily or for good.

use protocol::weights::lattice::RangeError;
use thiserror::Error;

use crate::trainer::quantise::NotFinite;

/// The reason for which training failed.
#[derive(Debug, Error)]
pub enum TrainError {
    /// The loss or an update is infinite or not a number.
    #[error("the loss or its gradient is no longer a number: the run has diverged")]
    NotFinite,
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error("the device failed: {0}")]
    Device(String),
    /// Another worker of the pipeline broke the protocol. Work in flight is given up, and begins anew when all workers
    /// have joined again.
    #[error(transparent)]
    Violation(#[from] PipelineViolation),
    /// All senders to this worker are gone.
    #[error("the connection to the node has ended")]
    Unheard,
}

/// The reason for which a message of another worker breaks a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PipelineViolation {
    /// The minibatch cannot be one of this job, or its sender does not lead.
    #[error("a minibatch that no leader of this pipeline begins")]
    Minibatch,
    /// More messages wait than belong to the minibatches in flight.
    #[error("more messages than the minibatches in flight consist of")]
    TooMany,
    /// The values are not for this stage, or their number is wrong.
    #[error("numbers that this stage does not compute with")]
    Numbers,
    /// The same values have come before.
    #[error("the same numbers twice")]
    Repeated,
}

impl From<NotFinite> for TrainError {
    fn from(_: NotFinite) -> Self {
        Self::NotFinite
    }
}
