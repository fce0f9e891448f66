//! Errors of NPZ files.

use std::path::PathBuf;

use thiserror::Error;

/// Reason why an NPZ file cannot be used.
#[derive(Debug, Error)]
pub enum NpzError {
    /// The file is not a ZIP archive.
    #[error("{file} is not an NPZ file ({why}): save one with numpy.savez")]
    NotNpz {
        file: PathBuf,
        /// Error message of the ZIP reader, which could not open the file.
        why: String,
    },
    /// The file lacks the arrays of inputs and labels.
    #[error("{file} holds {found}: give the arrays x_train, y_train, x_test and y_test, or x and y")]
    Missing {
        file: PathBuf,
        /// Names of the arrays in the file, for the error message.
        found: String,
    },
    /// An array of the NPZ file cannot be used.
    #[error("{file}: the array {name} {why}")]
    Array {
        file: PathBuf,
        /// Name of the array that cannot be used.
        name: String,
        /// Reason why the array cannot be used.
        why: String,
    },
    /// The numbers of inputs and labels differ.
    #[error(
        "{file}: the array {x} holds {inputs} samples but the array {y} holds {labels} labels: give one label per \
         sample"
    )]
    CountsDiffer {
        file: PathBuf,
        x: String,
        inputs: usize,
        y: String,
        labels: usize,
    },
}
