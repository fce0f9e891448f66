//! Errors of IDX files.

use std::path::{Path, PathBuf};

use protocol::job::model::Shape;
use thiserror::Error;

use super::super::error::list;

/// Reason why the IDX files of a dataset cannot be used.
#[derive(Debug, Error)]
pub enum IdxError {
    /// One of the four files is missing.
    #[error("{directory} holds none of {tried}: put one of them there or name another directory")]
    Missing {
        /// Directory that was searched.
        directory: PathBuf,
        /// Names that the file may have.
        tried: String,
    },
    /// The file does not start like an IDX file.
    #[error("{file} is not an IDX file (its first bytes are {start:02x?}): use an IDX file")]
    NotIdx {
        file: PathBuf,
        /// First bytes of the file.
        start: Vec<u8>,
    },
    /// The elements are not bytes.
    #[error("{file} holds elements of type {found:#04x}: convert them to bytes, type 0x08")]
    NotBytes {
        file: PathBuf,
        /// Type of the elements in the header.
        found: u8,
    },
    /// The array has the wrong number of dimensions, such as labels in place of images.
    #[error(
        "{file} holds an array of {dimensions} dimensions, but {expected} were expected: check that the files of \
         images and labels are not swapped"
    )]
    WrongContent {
        file: PathBuf,
        /// Number of dimensions.
        dimensions: u8,
        /// Expected contents.
        expected: &'static str,
    },
    /// A dimension is zero.
    #[error("{file} holds no data, for its dimensions are {dimensions:?}: give at least one sample")]
    Empty {
        file: PathBuf,
        /// Dimensions in the header.
        dimensions: Vec<usize>,
    },
    /// The header claims more elements than any real dataset has.
    #[error("{file} claims the dimensions {dimensions:?}, which is too much to load: check the file")]
    TooLarge {
        file: PathBuf,
        /// Dimensions in the header.
        dimensions: Vec<usize>,
    },
    /// The file is shorter than its header says.
    #[error("{file} is cut short, with {found} of {expected} bytes of data: fetch it again")]
    Truncated {
        file: PathBuf,
        /// Number of bytes by the header.
        expected: u64,
        /// Number of bytes in the file.
        found: u64,
    },
    /// The file is longer than its header says.
    #[error("{file} has extra bytes after its {expected} bytes of data: fetch it again")]
    Trailing {
        file: PathBuf,
        /// Number of bytes by the header.
        expected: u64,
    },
    /// The numbers of images and labels differ.
    #[error(
        "{images_file} holds {images} images but {labels_file} holds {labels} labels: give two \
         files that belong together"
    )]
    CountsDiffer {
        /// File of images.
        images_file: PathBuf,
        /// Number of images.
        images: usize,
        /// File of labels.
        labels_file: PathBuf,
        /// Number of labels.
        labels: usize,
    },
    /// Training images and test images differ in size.
    #[error(
        "the images of {train_file} are {train} and those of {test_file} are {test}: give files \
         with images of one size"
    )]
    SizesDiffer {
        /// File of training images.
        train_file: PathBuf,
        /// Shape of a training image.
        train: Shape,
        /// File of test images.
        test_file: PathBuf,
        /// Shape of a test image.
        test: Shape,
    },
    /// A label is not among the model's classes.
    #[error(
        "{file} holds the label {label}, but the model only knows the classes {classes}: use data with these classes"
    )]
    UnknownLabel {
        /// File of labels.
        file: PathBuf,
        /// The unknown label.
        label: u8,
        /// Classes of the model.
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
