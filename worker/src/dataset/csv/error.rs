//! What can be wrong with a CSV file.

use std::path::PathBuf;

use thiserror::Error;

/// What is wrong with a CSV file.
#[derive(Debug, Error)]
pub enum CsvError {
    /// No row at all.
    #[error("{file} is empty: give a file with one sample on each line")]
    Empty { file: PathBuf },
    /// Names of columns and nothing else.
    #[error("{file} has a header but no samples: give a file with one sample on each further line")]
    HeaderOnly { file: PathBuf },
    /// There is no place for a label and a number.
    #[error(
        "{file} has a single column: give a label and at least one number on each line, separated \
         by commas"
    )]
    TooFewColumns { file: PathBuf },
    /// The label column is not there.
    #[error("{file} has no label column '{wanted}': choose one of {columns}")]
    UnknownColumn {
        file: PathBuf,
        /// The label column asked for.
        wanted: String,
        /// The columns there are.
        columns: String,
    },
    /// A column that the model was trained on is not there.
    #[error("{file} has no column '{column}', which the model was trained on; it has {columns}")]
    MissingColumn {
        file: PathBuf,
        /// The column.
        column: String,
        /// The columns there are.
        columns: String,
    },
    /// A row of another width.
    #[error(
        "{file} line {line} has {found} columns, but line {first_line} has {expected}: give all \
         lines the same columns"
    )]
    Ragged {
        file: PathBuf,
        /// The line of the row.
        line: u64,
        /// How many columns it has.
        found: usize,
        /// The line of the first row.
        first_line: u64,
        /// How many columns that has.
        expected: usize,
    },
    /// A cell that should hold a number holds something else, or nothing, or one that is not finite.
    #[error(
        "{file} line {line}: column {column} holds '{cell}', which is not a number: give finite \
         numbers in every column but the label"
    )]
    NotANumber {
        file: PathBuf,
        /// The line of the row.
        line: u64,
        /// The name of the column.
        column: String,
        /// What the cell holds.
        cell: String,
    },
    /// A number so far from the others of its column that its distance is no number any more.
    #[error(
        "{file} holds a number that lies beyond all measure from those its column is scaled by: remove its line, or \
         give the column in another unit"
    )]
    BeyondMeasure { file: PathBuf },
    /// A sample without a class.
    #[error("{file} line {line} has no label: fill in its class or remove the line")]
    NoLabel {
        file: PathBuf,
        /// The line of the row.
        line: u64,
    },
    /// Bytes that are no text.
    #[error("{file} line {line} is not UTF-8 text: save the file in that encoding")]
    NotText {
        file: PathBuf,
        /// The line of the row.
        line: u64,
    },
    /// A label that the model does not know.
    #[error(
        "{file} line {line} has the label '{label}', but the model only knows {classes}: give data \
         with the classes it was trained on"
    )]
    UnknownClass {
        file: PathBuf,
        /// The line of the row.
        line: u64,
        /// The label.
        label: String,
        /// The classes of the model.
        classes: String,
    },
}
