//! The reasons for which training cannot start or go on.

use protocol::log::batch::BatchError;
use protocol::weights::digest::Digest;
use thiserror::Error;

use crate::sampling::plan::PlanError;
use crate::trainer::TrainError;

/// The reason for which a worker cannot start or go on.
#[derive(Debug, Error)]
pub enum TrainingError {
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The batch could not be encoded.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The samples cannot be distributed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The weights are not the sum of the batches in them: this replica is corrupted, and no other.
    #[error(
        "this worker's weights have the digest {found}, but the batches in them add up to {expected}: the memory of \
         this worker is corrupted"
    )]
    Spoilt {
        /// Digest that the batches add up to.
        expected: Digest,
        /// Digest recomputed from the weights.
        found: String,
    },
}
