//! The phases of a run.

use serde::{Deserialize, Serialize};

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// The nodes open the data.
    Preparing,
    /// The workers train.
    Training,
    /// Workers take no further steps; the last batches are on their way.
    Settling,
    /// The model is measured and saved.
    Finishing,
    /// The run is over.
    Ended,
}

impl Phase {
    /// Returns the word for the phase in records and for people.
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
