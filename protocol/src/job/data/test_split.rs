//! The choice of test rows in a table.

use std::fmt;
use std::path::PathBuf;

use super::DataSpecError;

/// Share of the samples that become test rows by default.
pub(super) const DEFAULT_SHARE: f64 = 0.2;

/// Choice of the test rows of a table: rows that are not trained on and that the result is measured on.
#[derive(Clone, Debug, PartialEq)]
pub enum TestSplit {
    /// Choice of test rows: this share of the table's rows, above 0 and at most 1.
    Share(f64),
    /// Choice of test rows: all rows of another file.
    File(PathBuf),
}

impl Default for TestSplit {
    fn default() -> Self {
        Self::Share(DEFAULT_SHARE)
    }
}

impl TestSplit {
    /// Sets the choice of test rows from `test=SHARE` or `testfile=FILE`. Returns `false` for another key.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Result<bool, DataSpecError> {
        let given = match key {
            "test" => Self::Share(share(value)?),
            "testfile" if value.is_empty() => return Err(DataSpecError::NoTestFile),
            "testfile" => Self::File(value.into()),
            _ => return Ok(false),
        };
        // A share that equals the default may never have been given, so it does not exclude a file.
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

/// Reads the value of `test=`, a share above 0 and at most 1.
pub(super) fn share(text: &str) -> Result<f64, DataSpecError> {
    text.parse()
        .ok()
        .filter(|&share: &f64| share > 0.0 && share <= 1.0)
        .ok_or_else(|| DataSpecError::TestFraction(text.to_owned()))
}
