//! The rows on which evaluations decide about a run, as a job states them.

use std::fmt;
use std::str::FromStr;

/// Rows on which a run measures the loss and accuracy that it decides by: for patience, best weights and targets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Validation {
    /// Validation rows: a tenth of the training rows if the job decides anything by evaluations, else none.
    #[default]
    Auto,
    /// Validation rows: this share of the training rows.
    Share(f64),
    /// Validation rows: the test rows themselves. Decisions then see the rows on which the result is reported.
    Test,
}

/// Share of training rows that [`Validation::Auto`] sets aside.
const USUAL_SHARE: f64 = 0.1;

impl Validation {
    /// Returns the share of training rows to set aside for validation. `decides` is true if the job decides anything by
    /// evaluations.
    #[must_use]
    pub fn share(self, decides: bool) -> f64 {
        match self {
            Self::Auto if decides => USUAL_SHARE,
            Self::Auto | Self::Test => 0.0,
            Self::Share(share) => share,
        }
    }
}

impl FromStr for Validation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            ("test", _) => Ok(Self::Test),
            (_, Ok(share)) if share > 0.0 && share < 1.0 => Ok(Self::Share(share)),
            _ => Err(format!(
                "the value must be 'auto', 'test' or a share above 0 and below 1, not '{text}'"
            )),
        }
    }
}

impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Share(share) => share.fmt(f),
            Self::Test => f.write_str("test"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip_and_mistakes_are_named() {
        for text in ["auto", "test", "0.25"] {
            assert_eq!(text.parse::<Validation>().unwrap().to_string(), text);
        }
        for text in ["0", "1", "NaN", "none"] {
            assert!(text.parse::<Validation>().unwrap_err().contains("above 0 and below 1"));
        }
    }

    #[test]
    fn rows_are_set_aside_only_where_something_is_decided_by_them() {
        assert_eq!(
            (Validation::Auto.share(true), Validation::Auto.share(false)),
            (0.1, 0.0)
        );
        assert_eq!(Validation::Test.share(true), 0.0);
        assert_eq!(Validation::Share(0.3).share(false), 0.3);
    }
}
