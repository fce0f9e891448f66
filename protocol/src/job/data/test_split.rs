//! What is kept for testing.

use std::fmt;
use std::path::PathBuf;

use super::DataSpecError;

/// The share of samples that is kept for testing when nothing else was asked for.
pub(super) const DEFAULT_SHARE: f64 = 0.2;

/// What is kept for testing.
#[derive(Clone, Debug, PartialEq)]
pub enum TestSplit {
    /// So large a share of the samples, above 0 and at most 1.
    Share(f64),
    /// Those of another file.
    File(PathBuf),
}

impl Default for TestSplit {
    fn default() -> Self {
        Self::Share(DEFAULT_SHARE)
    }
}

impl TestSplit {
    /// Takes `test=SHARE` or `testfile=FILE`; false for another key.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Result<bool, DataSpecError> {
        let given = match key {
            "test" => Self::Share(share(value)?),
            "testfile" if value.is_empty() => return Err(DataSpecError::NoTestFile),
            "testfile" => Self::File(value.into()),
            _ => return Ok(false),
        };
        // A share that is the default may have been given as well, and says nothing.
        match (&*self, &given) {
            (Self::File(_), Self::Share(_)) => Err(DataSpecError::TwoTests),
            (Self::Share(already), Self::File(_)) if *already != DEFAULT_SHARE => Err(DataSpecError::TwoTests),
            _ => {
                *self = given;
                Ok(true)
            }
        }
    }
}

impl fmt::Display for TestSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) => write!(f, "test={share}"),
            Self::File(file) => write!(f, "testfile={}", file.display()),
        }
    }
}

/// Reads the value of `test=`.
pub(super) fn share(text: &str) -> Result<f64, DataSpecError> {
    text.parse()
        .ok()
        .filter(|&share: &f64| share > 0.0 && share <= 1.0)
        .ok_or_else(|| DataSpecError::TestFraction(text.to_owned()))
}
