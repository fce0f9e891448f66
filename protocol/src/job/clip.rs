//! Clipping of gradients by their norm, which keeps stale updates from making a run diverge.

use std::fmt;
use std::str::FromStr;

/// Limit on the norm of gradients, as a job states it; larger gradients are scaled down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Clipping: to norm 1 where the updates of several workers add up, or where sgd predicts numbers; none elsewhere.
    Auto,
    /// Clipping: none.
    Never,
    /// Clipping: gradients are scaled down to at most this norm.
    Norm(f64),
}

impl FromStr for Clip {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            ("none", _) => Ok(Self::Never),
            (_, Ok(norm)) if norm > 0.0 && f64::is_finite(norm) => Ok(Self::Norm(norm)),
            _ => Err(format!(
                "the gradient norm must be a number above 0, 'auto' or 'none', not '{text}'"
            )),
        }
    }
}

impl fmt::Display for Clip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Never => f.write_str("none"),
            Self::Norm(norm) => norm.fmt(f),
        }
    }
}
