//! Errors of opening a dataset.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::{CsvError, IdxError, NpzError};

/// Reason why a dataset could not be opened.
#[derive(Debug, Error)]
pub enum DatasetError {
    /// The operating system reported an error while data was read.
    #[error("{file} could not be read: check that it exists, is complete and may be read")]
    Read {
        /// File or folder that could not be read.
        file: PathBuf,
        source: io::Error,
    },
    /// A path lies outside of the node's data directory.
    #[error(
        "{file} lies outside of the data directory {root}: move the data into it, or start the node with another \
         --data-root (--data-root / opens everything)"
    )]
    OutsideRoot {
        /// Requested path, which lies outside of the data directory.
        file: PathBuf,
        /// The node's data directory, outside of which nothing is read.
        root: PathBuf,
    },
    /// The samples are made by the code of a module, which is not run here.
    #[error("the samples are made by data() in the file of a model: only a run of that model can read them")]
    OfModule,
    /// The path is not a regular file.
    #[error("{file} is {found}: give a regular file")]
    NotAFile {
        /// Requested path, which is not a regular file.
        file: PathBuf,
        found: &'static str,
    },
    /// The data would take more than its share of the memory.
    #[error(
        "{file} holds {holds}, but data may use at most {limit} here, {percent} % of the free memory: use less data, \
         or a machine with more memory"
    )]
    TooLarge {
        file: PathBuf,
        /// Description of the contents that need too much memory.
        holds: String,
        /// Memory that data may use, formatted for people.
        limit: String,
        percent: u64,
    },
    /// The scratch file, for data that does not fit into memory, cannot be used.
    #[error(
        "the data is too large for memory, and its scratch file in {folder} could not be used: make room there, or name \
         another folder with TAU_SCRATCH"
    )]
    Scratch {
        /// Folder in which the scratch file should lie.
        folder: PathBuf,
        source: io::Error,
    },
    /// The file has another format than the data source names.
    #[error("{file} is {found}, not {expected}: {instead}")]
    OtherKind {
        file: PathBuf,
        /// Format that the file has.
        found: &'static str,
        /// Format that the data source names.
        expected: &'static str,
        /// Advice to the user on data of the found format.
        instead: &'static str,
    },
    /// The data source leaves no sample for training.
    #[error(
        "{data} leaves none of its samples ({samples}) to train on: use more data, or a smaller share of test samples"
    )]
    NothingToTrainOn {
        /// Data source as the user wrote it.
        data: String,
        /// Number of samples in the data.
        samples: usize,
    },
    /// No sample would be left for training after validation samples are set aside.
    #[error(
        "{samples} training samples are too few to set validation samples aside for --patience, --keep best or a \
         target: use more data, or --validation test"
    )]
    NothingToValidateOn {
        /// Number of training samples.
        samples: usize,
    },
    /// All samples of the data have the same label.
    #[error("every sample of {data} has the label '{class}': give data with at least two classes")]
    OneClass {
        /// Data source as the user wrote it.
        data: String,
        /// Name of the class that all samples have.
        class: String,
    },
    /// The data has another format or shape than the model's training data.
    #[error("{file} holds {found}, but the model was trained on {expected}: give data of the same form")]
    OtherInputs {
        file: PathBuf,
        /// Description of the inputs in the file.
        found: String,
        /// Description of the inputs that the model takes.
        expected: String,
    },
    /// The folder has none of CIFAR's files.
    #[error(
        "{directory} holds neither test_batch.bin of CIFAR-10 nor test.bin of CIFAR-100: unpack the archive with the \
         binary version there"
    )]
    NoCifar {
        /// Folder that was searched for CIFAR's files.
        directory: PathBuf,
    },
    /// The file is not a valid CIFAR file.
    #[error("{file} {why}: fetch the binary version of CIFAR again")]
    BadCifar {
        file: PathBuf,
        /// Reason why the CIFAR file is not valid.
        why: String,
    },
    /// An image, or a folder of images, cannot be used.
    #[error("{file} {why}")]
    Image {
        file: PathBuf,
        /// Reason why the image cannot be used, with advice.
        why: String,
    },
    /// A job names a column, but data of this format has no columns.
    #[error("{data} has no column '{column}': only tables (csv:FILE, parquet:FILE) have columns")]
    NoColumns {
        /// Data source as the user wrote it.
        data: String,
        column: String,
    },
    /// This program was built without Parquet.
    #[error(
        "{file} cannot be read: this program was built without Parquet; build it with '--features parquet', or save the \
         table as CSV and write csv:FILE"
    )]
    NoParquet {
        /// The Parquet file that was to be read.
        file: PathBuf,
    },
    /// A Parquet file cannot be used.
    #[error("{file} {why}")]
    Parquet {
        file: PathBuf,
        /// Reason why the Parquet file cannot be used, with advice.
        why: String,
    },
    /// An NPZ file cannot be used.
    #[error(transparent)]
    Npz(#[from] NpzError),
    /// An IDX file cannot be used.
    #[error(transparent)]
    Idx(#[from] IdxError),
    /// A CSV file cannot be used.
    #[error(transparent)]
    Csv(#[from] CsvError),
}

impl DatasetError {
    /// Returns a closure for `map_err` that makes an I/O error into the error that this file could not be read.
    pub(super) fn read(file: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let file = file.into();
        move |source| Self::Read { file, source }
    }
}

/// Lists at most 20 names for a message, and the number of the others.
pub(super) fn list(names: &[String]) -> String {
    const SHOWN: usize = 20;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        hidden => format!("{shown} and {hidden} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..22).map(|n| n.to_string()).collect();
        assert_eq!(list(&names[..2]), "0, 1");
        assert!(list(&names).ends_with("18, 19 and 2 more"));
    }
}
