//! Errors of IDX files.

use std::path::{Path, PathBuf};

use protocol::job::model::Shape;
use thiserror::Error;

use super::super::error::list;

/// Reason why the IDX files of a dataset cannot be used.
#[derive(Debug, Error)]
pub enum IdxError {
    /// One of the dataset's four files is missing.
    #[error("{directory} holds none of {tried}: put one of them there or name another directory")]
    Missing {
        directory: PathBuf,
        /// Names that the missing file may have.
        tried: String,
    },
    /// The file does not start like an IDX file.
    #[error("{file} is not an IDX file (its first bytes are {start:02x?}): use an IDX file")]
    NotIdx {
        file: PathBuf,
        /// First bytes of the file, which show that it is another format.
        start: Vec<u8>,
    },
    /// The elements of the file are not bytes.
    #[error("{file} holds elements of type {found:#04x}: convert them to bytes, type 0x08")]
    NotBytes {
        file: PathBuf,
        /// Code of the elements' type in the file's header, which is not the code of bytes.
        found: u8,
    },
    /// The file's array has the wrong number of dimensions, such as labels in place of images.
    #[error(
        "{file} holds an array of {dimensions} dimensions, but {expected} were expected: check that the files of \
         images and labels are not swapped"
    )]
    WrongContent {
        file: PathBuf,
        /// Number of dimensions of the array in the file.
        dimensions: u8,
        /// Description of the contents that the file should have.
        expected: &'static str,
    },
    /// A dimension in the file's header is zero.
    #[error("{file} holds no data, for its dimensions are {dimensions:?}: give at least one sample")]
    Empty {
        file: PathBuf,
        /// Sizes of the array's dimensions, as the file's header states them.
        dimensions: Vec<usize>,
    },
    /// The file's header claims more elements than any real dataset has.
    #[error("{file} claims the dimensions {dimensions:?}, which is too much to load: check the file")]
    TooLarge {
        file: PathBuf,
        /// Sizes of the array's dimensions, as the file's header states them.
        dimensions: Vec<usize>,
    },
    /// The file is shorter than its header says.
    #[error("{file} is cut short, with {found} of {expected} bytes of data: fetch it again")]
    Truncated {
        file: PathBuf,
        /// Number of bytes of data by the file's header.
        expected: u64,
        /// Number of bytes of data in the file.
        found: u64,
    },
    /// The file is longer than its header says.
    #[error("{file} has extra bytes after its {expected} bytes of data: fetch it again")]
    Trailing {
        file: PathBuf,
        /// Number of bytes of data by the file's header.
        expected: u64,
    },
    /// The numbers of images and labels differ.
    #[error(
        "{images_file} holds {images} images but {labels_file} holds {labels} labels: give two \
         files that belong together"
    )]
    CountsDiffer {
        images_file: PathBuf,
        images: usize,
        labels_file: PathBuf,
        labels: usize,
    },
    /// Training images and test images differ in size.
    #[error(
        "the images of {train_file} are {train} and those of {test_file} are {test}: give files \
         with images of one size"
    )]
    SizesDiffer {
        train_file: PathBuf,
        /// Shape of a training image.
        train: Shape,
        test_file: PathBuf,
        /// Shape of a test image.
        test: Shape,
    },
    /// A label is not among the model's classes.
    #[error(
        "{file} holds the label {label}, but the model only knows the classes {classes}: use data with these classes"
    )]
    UnknownLabel {
        file: PathBuf,
        /// Label in the file, which the model does not know.
        label: u8,
        /// Names of the classes that the model knows.
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
