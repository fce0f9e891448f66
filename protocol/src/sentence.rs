//! Formatting of errors for people, as one line.

use std::error::Error;

/// Returns an error with all its causes on one line: `error (cause) (cause of the cause)`.
#[must_use]
pub fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text} ({cause})");
        source = cause.source();
    }
    text
}
