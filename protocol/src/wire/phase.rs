//! How far a run is.

use serde::{Deserialize, Serialize};

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Data is opened.
    Preparing,
    /// Workers train.
    Training,
    /// No further steps; the last batches are under way.
    Settling,
    /// The model is measured and saved.
    Finishing,
    /// It is over.
    Ended,
}

impl Phase {
    /// The word for people and records.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Training => "training",
            Self::Settling => "settling",
            Self::Finishing => "finishing",
            Self::Ended => "idle",
        }
    }
}
