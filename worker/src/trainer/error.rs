//! The reasons for which training fails, temporarily or for good.

use protocol::weights::lattice::RangeError;
use thiserror::Error;

use crate::module::ModuleFailure;
use crate::trainer::quantise::NotFinite;

#[derive(Debug, Error)]
pub enum TrainError {
    /// Reason why training failed: the loss or an update is infinite or not a number.
    #[error("the loss or its gradient is no longer a number: the run has diverged")]
    NotFinite,
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error("the device failed: {0}")]
    Device(String),
    /// Reason why training failed: the user's code failed.
    #[error(transparent)]
    Module(#[from] ModuleFailure),
    /// Reason why training failed: another worker of the pipeline broke the protocol. Work in flight is given up, and
    /// begins anew when all workers have joined again.
    #[error(transparent)]
    Violation(#[from] PipelineViolation),
    /// Reason why training ended: all senders of messages to the training thread are gone.
    #[error("the connection to the node has ended")]
    Unheard,
}

/// Violation of a pipeline's protocol by another worker, because of which the pipeline is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PipelineViolation {
    /// Protocol violation in a pipeline: the announced minibatch cannot be one of this job, or its sender does not
    /// lead.
    #[error("a minibatch that no leader of this pipeline begins")]
    Minibatch,
    /// Protocol violation in a pipeline: more messages wait than belong to the minibatches in flight.
    #[error("more messages than the minibatches in flight consist of")]
    TooMany,
    /// Protocol violation in a pipeline: the values of a message are not for this stage, or their number is wrong.
    #[error("numbers that this stage does not compute with")]
    Numbers,
    /// Protocol violation in a pipeline: a worker has sent its part of a result twice.
    #[error("the same numbers twice")]
    Repeated,
}

impl From<NotFinite> for TrainError {
    fn from(_: NotFinite) -> Self {
        Self::NotFinite
    }
}
