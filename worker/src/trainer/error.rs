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
    /// Another worker of the pipeline cannot be reached: what was under way is over, and begins anew when all are there.
    #[error("a worker of this pipeline cannot be reached")]
    PipelineBroken,
    /// Nobody is left to tell this worker anything.
    #[error("the connection to the node has ended")]
    Unheard,
}

impl From<NotFinite> for TrainError {
    fn from(_: NotFinite) -> Self {
        Self::NotFinite
    }
}
