//! What can be wrong with a file of arrays.

use std::path::PathBuf;

use thiserror::Error;

/// What is wrong with a file of arrays.
#[derive(Debug, Error)]
pub enum NpzError {
    /// It is no archive.
    #[error("{file} is not an NPZ file ({why}): save one with numpy.savez")]
    NotNpz {
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The arrays that are needed are not there.
    #[error("{file} holds {found}: give the arrays x_train, y_train, x_test and y_test, or x and y")]
    Missing {
        file: PathBuf,
        /// The arrays there are.
        found: String,
    },
    /// An array cannot be used.
    #[error("{file}: the array {name} {why}")]
    Array {
        file: PathBuf,
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Inputs and labels do not pair up.
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
