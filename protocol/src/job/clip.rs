//! Clipping a gradient by its norm: what keeps stale updates from blowing a run up.

use std::fmt;
use std::str::FromStr;

/// What a job says of clipping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// As the number of workers needs it.
    Auto,
    /// Gradients are taken as they are.
    Never,
    /// To this norm.
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
