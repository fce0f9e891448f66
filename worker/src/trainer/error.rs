//! Why training cannot go on, now or at all.

use protocol::weights::lattice::RangeError;
use thiserror::Error;

use crate::trainer::quantise::NotFinite;

/// Why training cannot go on.
#[derive(Debug, Error)]
pub enum TrainError {
    /// The loss or an update is infinite or no number.
    #[error("the loss or its gradient is no longer a number: the run has diverged")]
    NotFinite,
    /// A weight left the lattice's exact range.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// Another worker of the pipeline has sent what no honest one sends: what was under way is over, and begins anew when all
    /// have joined again.
    #[error(transparent)]
    Violation(#[from] PipelineViolation),
    /// Nobody is left to tell this worker anything.
    #[error("the connection to the node has ended")]
    Unheard,
}

/// Why a message of another worker gives a pipeline up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PipelineViolation {
    /// The minibatch cannot be one of this job, or its sender does not lead.
    #[error("a minibatch that no leader of this pipeline begins")]
    Minibatch,
    /// More waits here than belongs to the minibatches in flight.
    #[error("more messages than the minibatches in flight consist of")]
    TooMany,
    /// The numbers are not for this stage, or of another size.
    #[error("numbers that this stage does not compute with")]
    Numbers,
    /// The numbers have come before.
    #[error("the same numbers twice")]
    Repeated,
}

impl From<NotFinite> for TrainError {
    fn from(_: NotFinite) -> Self {
        Self::NotFinite
    }
}
