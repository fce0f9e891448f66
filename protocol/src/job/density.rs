//! How many of a model's weights a batch changes, as a job says it.

use std::fmt;
use std::str::FromStr;

use crate::batch::BATCH_BYTES_MAX;
use crate::text_options::TextOptions;

/// What fraction of the weights a batch is to change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Density {
    /// What suits the model and the number of workers.
    Auto {
        /// The most bytes that a batch is to take, on average.
        bytes_max: Option<u32>,
    },
    /// This.
    Fraction(f64),
}

const BYTES_MIN: f64 = 64.0;
const FORMS: &str = "auto[:bytes=N] or a fraction";

impl FromStr for Density {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(fraction) = text.parse::<f64>() {
            return if fraction > 0.0 && fraction <= 1.0 {
                Ok(Self::Fraction(fraction))
            } else {
                Err(format!("it must be above 0 and at most 1, not {text}"))
            };
        }
        let mut options = TextOptions::parse(text);
        if options.name != "auto" {
            return Err(format!("'{text}' is no density; it is {FORMS}"));
        }
        let bytes = options.number("bytes")?;
        options.finish(FORMS)?;
        match bytes {
            Some(bytes) if !(BYTES_MIN..=BATCH_BYTES_MAX as f64).contains(&bytes) => Err(format!(
                "bytes must be from {BYTES_MIN} to {BATCH_BYTES_MAX}, not {bytes}"
            )),
            bytes => Ok(Self::Auto {
                bytes_max: bytes.map(|bytes| bytes as u32),
            }),
        }
    }
}

impl fmt::Display for Density {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto { bytes_max: None } => f.write_str("auto"),
            Self::Auto { bytes_max: Some(bytes) } => write!(f, "auto:bytes={bytes}"),
            Self::Fraction(fraction) => write!(f, "{fraction}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip_and_mistakes_are_named() {
        for text in ["auto", "auto:bytes=20000", "0.002", "1"] {
            assert_eq!(text.parse::<Density>().unwrap().to_string(), text);
        }
        let error = |text: &str| text.parse::<Density>().unwrap_err();
        assert!(error("0").contains("above 0 and at most 1, not 0"));
        assert!(error("NaN").contains("above 0"));
        assert!(error("much").contains("'much' is no density; it is auto"));
        assert!(error("auto:bytes=3").contains("from 64 to"));
        assert!(error("auto:byte=300").contains("no option 'byte=300'"));
    }
}
