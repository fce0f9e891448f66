//! The strategy by which nodes exchange what they learn.

use std::fmt;
use std::str::FromStr;

use crate::text_options::serde_as_text;

/// An exchange strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// One-bit changes of ±τ with residuals, broadcast to all (Strom 2015).
    Strom,
}

impl FromStr for Exchange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "strom" => Ok(Self::Strom),
            unknown => Err(format!("there is no exchange '{unknown}'; there is: strom")),
        }
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Strom => "strom",
        })
    }
}

serde_as_text!(Exchange);
