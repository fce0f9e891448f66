//! The weights that a run ends with, as a job states them.

use crate::text_options::words;

/// Choice of the weights that a run ends with: the last ones or the best ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Weights that a run ends with: those after the last batch.
    #[default]
    Last,
    /// Weights that a run ends with: of all evaluated weights, including the last, those with the lowest evaluation
    /// loss.
    Best,
}

words!(Keep, String, unknown, "last" => Self::Last, "best" => Self::Best);

fn unknown(text: &str) -> String {
    format!("'{text}' does not name weights to keep; use last or best")
}
