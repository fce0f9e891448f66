//! What can be wrong with IDX files.

use std::path::{Path, PathBuf};

use protocol::job::model::Shape;
use thiserror::Error;

use super::super::error::list;

/// What is wrong with the IDX files of a dataset.
#[derive(Debug, Error)]
pub enum IdxError {
    /// One of the four files is not there.
    #[error("{directory} holds none of {tried}: put one of them there or name another directory")]
    Missing {
        /// Where it was looked for.
        directory: PathBuf,
        /// The names it could have.
        tried: String,
    },
    /// The file does not start like an IDX file.
    #[error("{file} is not an IDX file (its first bytes are {start:02x?}): use an IDX file")]
    NotIdx {
        file: PathBuf,
        /// Its first bytes.
        start: Vec<u8>,
    },
    /// The file holds something else than bytes.
    #[error("{file} holds elements of type {found:#04x}: convert them to bytes, type 0x08")]
    NotBytes {
        file: PathBuf,
        /// The type in its header.
        found: u8,
    },
    /// An array of the wrong kind, such as labels in the place of images.
    #[error(
        "{file} holds an array of {dimensions} dimensions, but {expected} were expected: check that the files of \
         images and labels are not swapped"
    )]
    WrongContent {
        file: PathBuf,
        /// How many dimensions its array has.
        dimensions: u8,
        /// What was expected.
        expected: &'static str,
    },
    /// A dimension is zero.
    #[error("{file} holds no data, for its dimensions are {dimensions:?}: give at least one sample")]
    Empty {
        file: PathBuf,
        /// The dimensions in its header.
        dimensions: Vec<usize>,
    },
    /// The header promises more than any real dataset holds.
    #[error("{file} claims the dimensions {dimensions:?}, which is too much to load: check the file")]
    TooLarge {
        file: PathBuf,
        /// The dimensions in its header.
        dimensions: Vec<usize>,
    },
    /// The file ends early.
    #[error("{file} is cut short, with {found} of {expected} bytes of data: fetch it again")]
    Truncated {
        file: PathBuf,
        /// How many bytes the header promises.
        expected: u64,
        /// How many there are.
        found: u64,
    },
    /// The file goes on after its end.
    #[error("{file} has extra bytes after its {expected} bytes of data: fetch it again")]
    Trailing {
        file: PathBuf,
        /// How many bytes the header promises.
        expected: u64,
    },
    /// Images and labels do not pair up.
    #[error(
        "{images_file} holds {images} images but {labels_file} holds {labels} labels: give two \
         files that belong together"
    )]
    CountsDiffer {
        /// The file of images.
        images_file: PathBuf,
        /// How many it holds.
        images: usize,
        /// The file of labels.
        labels_file: PathBuf,
        /// How many it holds.
        labels: usize,
    },
    /// Images to train on and to test on are of two sizes.
    #[error(
        "the images of {train_file} are {train} and those of {test_file} are {test}: give files \
         with images of one size"
    )]
    SizesDiffer {
        /// The file of training images.
        train_file: PathBuf,
        /// The shape of one.
        train: Shape,
        /// The file of test images.
        test_file: PathBuf,
        /// The shape of one.
        test: Shape,
    },
    /// A label that the model does not know.
    #[error(
        "{file} holds the label {label}, but the model only knows the classes {classes}: use data with these classes"
    )]
    UnknownLabel {
        /// The file of labels.
        file: PathBuf,
        /// The label.
        label: u8,
        /// The classes of the model.
        classes: String,
    },
}

impl IdxError {
    pub(super) fn unknown_label(file: &Path, label: u8, classes: &[String]) -> Self {
        Self::UnknownLabel {
            file: file.to_owned(),
            label,
            classes: list(classes),
        }
    }
}
