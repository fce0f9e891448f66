//! Why a dataset could not be opened.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::{CsvError, IdxError, NpzError};

/// Why a dataset could not be opened.
#[derive(Debug, Error)]
pub enum DatasetError {
    /// The operating system refused.
    #[error("{file} could not be read: check that it exists, is complete and may be read")]
    Read {
        /// What was to be read.
        file: PathBuf,
        source: io::Error,
    },
    /// A path leads out of the directory that data may come from.
    #[error(
        "{file} lies outside of the data directory {root}: move the data into it, or start the node with another \
         --data-root (--data-root / opens everything)"
    )]
    OutsideRoot {
        /// What was asked for.
        file: PathBuf,
        /// Where data may come from.
        root: PathBuf,
    },
    /// Something that is read until it ends, and may not.
    #[error("{file} is {found}: give a regular file")]
    NotAFile {
        /// What was to be read.
        file: PathBuf,
        found: &'static str,
    },
    /// More data than its share of the memory.
    #[error(
        "{file} holds {holds}, but data may use at most {limit} here, {percent} % of the free memory: use less data, \
         or a machine with more memory"
    )]
    TooLarge {
        /// What was to be read.
        file: PathBuf,
        /// What is too much in it.
        holds: String,
        /// The share, as people read it.
        limit: String,
        percent: u64,
    },
    /// There is no place for data that does not fit into memory.
    #[error(
        "the data is too large for memory, and its scratch file in {folder} could not be used: make room there, or name \
         another folder with TAU_SCRATCH"
    )]
    Scratch {
        /// Where it lies.
        folder: PathBuf,
        source: io::Error,
    },
    /// A file of another kind than the one that was named.
    #[error("{file} is {found}, not {expected}: {instead}")]
    OtherKind {
        /// What was read.
        file: PathBuf,
        /// What it is.
        found: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// No sample is left for training.
    #[error(
        "{data} leaves none of its samples ({samples}) to train on: use more data, or a smaller share of test samples"
    )]
    NothingToTrainOn {
        /// Where the samples come from.
        data: String,
        /// How many there are.
        samples: usize,
    },
    /// No sample is left for training once some are set aside.
    #[error(
        "{samples} training samples are too few to set validation samples aside for --patience, --keep best or \
         --target-accuracy: use more data, or --validation test"
    )]
    NothingToValidateOn {
        /// Training samples.
        samples: usize,
    },
    /// There is nothing to tell apart.
    #[error("every sample of {data} has the label '{class}': give data with at least two classes")]
    OneClass {
        /// Where the samples come from.
        data: String,
        /// The label.
        class: String,
    },
    /// The data is of another kind or width than what the model was trained on.
    #[error("{file} holds {found}, but the model was trained on {expected}: give data of the same form")]
    OtherInputs {
        /// What was read.
        file: PathBuf,
        /// What it holds.
        found: String,
        /// What the model takes.
        expected: String,
    },
    /// None of CIFAR's files.
    #[error(
        "{directory} holds neither test_batch.bin of CIFAR-10 nor test.bin of CIFAR-100: unpack the archive with the \
         binary version there"
    )]
    NoCifar {
        /// Where they were looked for.
        directory: PathBuf,
    },
    /// A file that is none of CIFAR's.
    #[error("{file} {why}: fetch the binary version of CIFAR again")]
    BadCifar {
        /// What was read.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// An image, or a folder of them, cannot be used.
    #[error("{file} {why}")]
    Image {
        /// What was read.
        file: PathBuf,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// Data without columns, of which one is named.
    #[error("{data} has no column '{column}': only tables (csv:FILE, parquet:FILE) have columns")]
    NoColumns {
        /// Where the samples come from.
        data: String,
        /// The column asked for.
        column: String,
    },
    /// Parquet is not read by this program.
    #[error(
        "{file} cannot be read: this program was built without Parquet; build it with '--features parquet', or save the \
         table as CSV and write csv:FILE"
    )]
    NoParquet {
        /// What was to be read.
        file: PathBuf,
    },
    /// A Parquet file is wrong.
    #[error("{file} {why}")]
    Parquet {
        /// What was read.
        file: PathBuf,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// A file of arrays is wrong.
    #[error(transparent)]
    Npz(#[from] NpzError),
    /// An IDX file is wrong.
    #[error(transparent)]
    Idx(#[from] IdxError),
    /// A CSV file is wrong.
    #[error(transparent)]
    Csv(#[from] CsvError),
}

impl DatasetError {
    /// For `map_err`: names the file that could not be read.
    pub(super) fn read(file: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let file = file.into();
        move |source| Self::Read { file, source }
    }
}

/// Lists names in a message without letting a wide file fill the screen.
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
