//! Helpers for tests of several data formats.

use std::fmt::Debug;
use std::path::Path;

use super::{Dataset, DatasetError};

/// Opens test data by its data spec: a format such as `csv`, a path and options.
pub(super) fn opened(kind: &str, path: &Path, options: &str) -> Result<Dataset, DatasetError> {
    let spec = format!("{kind}:{}{options}", path.display());
    Dataset::open(&spec.parse().unwrap(), 7, None)
}

/// Asserts that data is refused with a message that contains all these parts.
#[track_caller]
pub(super) fn assert_refused<T: Debug>(result: Result<T, DatasetError>, parts: &[&str]) {
    let message = result.unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "'{part}' is not in: {message}");
    }
}
