//! The reasons for which training cannot start or go on.

use protocol::log::batch::BatchError;
use protocol::weights::digest::Digest;
use thiserror::Error;

use crate::sampling::plan::PlanError;
use crate::trainer::TrainError;

#[derive(Debug, Error)]
pub enum TrainingError {
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Reason why a worker cannot go on: its batch could not be encoded.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// Reason why a worker cannot start: the samples cannot be distributed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Reason why a worker cannot go on: its weights are not the sum of the batches in them. This replica is corrupted,
    /// and no other.
    #[error(
        "this worker's weights have the digest {found}, but the batches in them add up to {expected}: the memory of \
         this worker is corrupted"
    )]
    Spoilt {
        /// Digest (checksum) that the weights should have, according to the batches in them.
        expected: Digest,
        /// Digest recomputed from the weights, as the error message shows it.
        found: String,
    },
}
