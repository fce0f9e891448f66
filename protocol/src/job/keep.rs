//! Which weights a run ends with, as a job says it.

use std::fmt;
use std::str::FromStr;

/// Which weights a run ends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Those that it has come to.
    #[default]
    Last,
    /// Of all that were measured, and those that it has come to, the ones with the lowest evaluation loss.
    Best,
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "last" => Ok(Self::Last),
            "best" => Ok(Self::Best),
            other => Err(format!("'{other}' does not name weights to keep; use last or best")),
        }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Last => "last",
            Self::Best => "best",
        })
    }
}
