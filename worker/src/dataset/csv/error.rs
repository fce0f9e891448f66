//! Errors of CSV files.

use std::path::PathBuf;

use protocol::job::data::{DataSpec, TableOptions};
use thiserror::Error;

/// Reason why a table cannot be used.
#[derive(Debug, Error)]
pub enum CsvError {
    /// The file has no rows.
    #[error("{file} is empty: give a file with one sample on each line")]
    Empty { file: PathBuf },
    /// The file has a header and no rows.
    #[error("{file} has a header but no samples: give a file with one sample on each further line")]
    HeaderOnly { file: PathBuf },
    /// The table has no column besides the label.
    #[error(
        "{file} has too few columns: a label and at least one other column are needed; add a column, or name the \
         separator with sep= if it was not detected"
    )]
    TooFewColumns { file: PathBuf },
    /// All columns of the table are labels, dropped or empty.
    #[error(
        "{file} has no column left to learn from: every column is the label, dropped or empty; keep at least one more"
    )]
    NothingLeft { file: PathBuf },
    /// The table has no column of the label's name.
    #[error("{file} has no label column '{wanted}': choose one of {columns}")]
    UnknownColumn {
        file: PathBuf,
        /// Name of the requested label column, which the table lacks.
        wanted: String,
        columns: String,
    },
    /// Columns that the model was trained on do not exist.
    #[error("{file} has no {missing}; it has {columns}")]
    MissingColumns {
        file: PathBuf,
        /// Description of the columns that the table lacks.
        missing: String,
        columns: String,
    },
    /// A row has another number of columns than the first row.
    #[error(
        "{file} line {line} has {found} columns, but line {first_line} has {expected}: give every line the same \
         number of columns"
    )]
    Ragged {
        file: PathBuf,
        line: u64,
        /// Number of columns in the row that differs from the first row.
        found: usize,
        /// Line number in the file of the table's first row.
        first_line: u64,
        /// Number of columns in the table's first row.
        expected: usize,
    },
    /// A column that an option names does not exist.
    #[error("{file} has no column '{wanted}', which {option} names: choose one of {columns}")]
    NoSuchColumn {
        file: PathBuf,
        option: &'static str,
        /// The column that the option names and the table lacks.
        wanted: String,
        columns: String,
    },
    /// A cell of a number column holds a text, or a number that is not finite.
    #[error("{file} line {line}: column {column} holds '{cell}', which is not a number: {advice}")]
    NotANumber {
        file: PathBuf,
        line: u64,
        column: String,
        cell: String,
        advice: String,
    },
    /// Several columns of the table cannot be read as they are.
    #[error("{file} has columns that cannot be used as they are:\n  {problems}\ngive the data as '{instead}'")]
    Columns {
        file: PathBuf,
        /// Descriptions of the columns that cannot be read, one per line.
        problems: String,
        /// Options with which the columns can be read.
        cure: Box<TableOptions>,
        /// Data spec that the message suggests to the user, with options that can read the columns.
        instead: String,
    },
    /// A cell of a date column is not a date.
    #[error(
        "{file} line {line}: column {column} holds '{cell}', which is not a date: write dates as 2024-05-31 or \
         2024-05-31 13:45:00"
    )]
    NotADate {
        file: PathBuf,
        line: u64,
        column: String,
        cell: String,
    },
    /// A cell holds a number with a decimal comma.
    #[error(
        "{file} line {line}: column {column} holds '{cell}', which is not a number: write numbers with a decimal \
         point, decimal commas are not supported"
    )]
    DecimalComma {
        file: PathBuf,
        line: u64,
        column: String,
        cell: String,
    },
    /// A cell of a number column is empty or marks a missing value.
    #[error(
        "{file} line {line}: column {column} holds '{cell}', so its number is missing: fill in the cell, or use \
         missing=mean or missing=zero"
    )]
    MissingNumber {
        file: PathBuf,
        line: u64,
        column: String,
        cell: String,
    },
    /// A column of categories has too many different texts.
    #[error(
        "{file} holds more than {most} different texts in column {column}, too many to give each text an input: \
         {advice}"
    )]
    TooManyCategories {
        file: PathBuf,
        column: String,
        /// Largest number of categories that a column may have.
        most: usize,
        advice: String,
    },
    /// A number is so far from the others of its column that its scaled value is not finite.
    #[error(
        "{file} holds a number that is not finite after scaling, because it is too far from the other numbers of its \
         column: remove its line, or use another unit for the column"
    )]
    BeyondMeasure { file: PathBuf },
    /// A row of the table has no label.
    #[error("{file} line {line} has no label: fill it in or remove the line")]
    NoLabel {
        file: PathBuf,
        /// Line of the row without a label, from 1.
        line: u64,
    },
    /// A label is missing in a column of numbers.
    #[error(
        "{file} line {line} has no label: column {column} holds '{cell}' among numbers: remove such lines, or use \
         target=class if the column holds names of classes"
    )]
    GapAmongNumbers {
        file: PathBuf,
        line: u64,
        column: String,
        cell: String,
    },
    /// A label that should be a number is not.
    #[error(
        "{file} line {line}: label column {column} holds '{cell}', which is not a number: give a number on every \
         line, or use target=class"
    )]
    LabelNotANumber {
        file: PathBuf,
        line: u64,
        column: String,
        cell: String,
    },
    /// The table has another number of columns to predict than the model predicts.
    #[error(
        "{file} has {found} columns of numbers to predict, but the model predicts {expected}: name {expected} columns \
         with label="
    )]
    OtherNumbers {
        file: PathBuf,
        /// Number of columns to predict in the table.
        found: usize,
        /// Number of columns that the model predicts.
        expected: usize,
    },
    /// The table has more rows than sample numbers exist.
    #[error("{file} has more than 4,294,967,295 rows: use fewer rows")]
    TooManyRows { file: PathBuf },
    /// The file is not UTF-8 text.
    #[error("{file} line {line} is not UTF-8 text: save the file as UTF-8")]
    NotText {
        file: PathBuf,
        /// Line of the row that is not UTF-8, from 1.
        line: u64,
    },
    /// A label is not among the model's classes.
    #[error(
        "{file} line {line} has the label '{label}', but the training data has only the classes {classes}: use data \
         with these classes"
    )]
    UnknownClass {
        file: PathBuf,
        line: u64,
        /// Label of the row, which the model does not know.
        label: String,
        /// Names of the classes that the model knows.
        classes: String,
    },
}

impl CsvError {
    /// True if the error is a cell that does not fit its column's rule, so that other columns may have the same
    /// problem.
    pub(super) fn is_of_a_column(&self) -> bool {
        matches!(
            self,
            Self::NotANumber { .. }
                | Self::DecimalComma { .. }
                | Self::MissingNumber { .. }
                | Self::TooManyCategories { .. }
        )
    }

    /// Fills in the data spec that the error message suggests to the user.
    #[must_use]
    pub(in crate::dataset) fn with_cure(mut self, spec: &DataSpec) -> Self {
        if let Self::Columns { cure, instead, .. } = &mut self {
            let mut spec = spec.clone();
            if let DataSpec::Csv { table, .. } | DataSpec::Parquet { table, .. } = &mut spec {
                table.clone_from(cure);
            }
            *instead = spec.to_string();
        }
        self
    }
}
