//! The phases of a run.

use serde::{Deserialize, Serialize};

/// The phase of a run, as nodes report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Phase before training, in which the nodes open the job's data, until the run's plan is decided.
    Preparing,
    /// Phase in which the workers train.
    Training,
    /// Phase after training: workers take no further steps, and the last batches are on their way.
    Settling,
    /// Phase near the end of a run, in which the model is measured and saved.
    Finishing,
    /// Phase of a run that is over.
    Ended,
}

impl Phase {
    /// Returns the word for the run's phase, for statistics and for people.
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
