//! Which weights a run ends with, as a job says it.

use crate::text_options::words;

/// Which weights a run ends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Those that it has come to.
    #[default]
    Last,
    /// Of all that were measured, and those that it has come to, the ones with the lowest evaluation loss.
    Best,
}

words!(Keep, String, unknown, "last" => Self::Last, "best" => Self::Best);

fn unknown(text: &str) -> String {
    format!("'{text}' does not name weights to keep; use last or best")
}
