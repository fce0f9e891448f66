//! Why training cannot start or go on.

use protocol::log::batch::BatchError;
use protocol::weights::digest::Digest;
use thiserror::Error;

use crate::sampling::plan::PlanError;
use crate::trainer::TrainError;

/// Why a worker cannot start or go on.
#[derive(Debug, Error)]
pub enum TrainingError {
    /// Training failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The batch could not be written.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The samples cannot be shared out.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The weights are not what the batches in them add up to: this replica is spoilt, and no other.
    #[error(
        "this worker's weights have the digest {found}, but the batches in them add up to {expected}: the memory of \
         this worker is corrupted"
    )]
    Spoilt {
        /// What the batches add up to.
        expected: Digest,
        /// What was recomputed from the weights.
        found: String,
    },
}
