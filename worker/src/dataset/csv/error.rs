//! What can be wrong with a CSV file.

use std::path::PathBuf;

use protocol::job::data::{DataSpec, TableOptions};
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
        "{file} has too few columns: a label and at least one other column are needed; add a column, or name the \
         separator with sep= if it was not detected"
    )]
    TooFewColumns { file: PathBuf },
    /// Nothing is left of all columns.
    #[error(
        "{file} has no column left to learn from: every column is the label, dropped or empty; keep at least one more"
    )]
    NothingLeft { file: PathBuf },
    /// The label column is not there.
    #[error("{file} has no label column '{wanted}': choose one of {columns}")]
    UnknownColumn {
        file: PathBuf,
        /// The label column asked for.
        wanted: String,
        /// The columns there are.
        columns: String,
    },
    /// Columns that the model was trained on are not there.
    #[error("{file} has no {missing}; it has {columns}")]
    MissingColumns {
        file: PathBuf,
        /// The columns, in words.
        missing: String,
        /// The columns there are.
        columns: String,
    },
    /// A row of another width.
    #[error(
        "{file} line {line} has {found} columns, but line {first_line} has {expected}: give every line the same \
         number of columns"
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
    /// A column that an option names is not there.
    #[error("{file} has no column '{wanted}', which {option} names: choose one of {columns}")]
    NoSuchColumn {
        file: PathBuf,
        /// The option.
        option: &'static str,
        /// The column asked for.
        wanted: String,
        /// The columns there are.
        columns: String,
    },
    /// A cell that should hold a number holds a text, or a number that is not finite.
    #[error("{file} line {line}: column {column} holds '{cell}', which is not a number: {advice}")]
    NotANumber {
        file: PathBuf,
        /// The line of the row.
        line: u64,
        /// The name of the column.
        column: String,
        /// What the cell holds.
        cell: String,
        /// What to do.
        advice: String,
    },
    /// Several columns cannot be read as they are.
    #[error("{file} has columns that cannot be used as they are:\n  {problems}\ngive the data as '{instead}'")]
    Columns {
        file: PathBuf,
        /// What is wrong with them, a line each.
        problems: String,
        /// Options that read them.
        cure: Box<TableOptions>,
        /// The data with those options.
        instead: String,
    },
    /// A cell that should hold a date holds something else.
    #[error(
        "{file} line {line}: column {column} holds '{cell}', which is not a date: write dates as 2024-05-31 or \
         2024-05-31 13:45:00"
    )]
    NotADate {
        file: PathBuf,
        /// The line of the row.
        line: u64,
        /// The name of the column.
        column: String,
        /// What the cell holds.
        cell: String,
    },
    /// A number with a comma.
    #[error(
        "{file} line {line}: column {column} holds '{cell}', which is not a number: write numbers with a decimal \
         point, decimal commas are not supported"
    )]
    DecimalComma {
        file: PathBuf,
        /// The line of the row.
        line: u64,
        /// The name of the column.
        column: String,
        /// What the cell holds.
        cell: String,
    },
    /// A cell that should hold a number holds nothing.
    #[error(
        "{file} line {line}: column {column} holds '{cell}', so its number is missing: fill in the cell, or use \
         missing=mean or missing=zero"
    )]
    MissingNumber {
        file: PathBuf,
        /// The line of the row.
        line: u64,
        /// The name of the column.
        column: String,
        /// What the cell holds.
        cell: String,
    },
    /// A column of nearly as many texts as rows.
    #[error(
        "{file} holds more than {most} different texts in column {column}, too many to give each text an input: \
         {advice}"
    )]
    TooManyCategories {
        file: PathBuf,
        /// The name of the column.
        column: String,
        /// How many there may be.
        most: usize,
        /// What to do.
        advice: String,
    },
    /// A number so far from the others of its column that its distance is no number any more.
    #[error(
        "{file} holds a number that is not finite after scaling, because it is too far from the other numbers of its \
         column: remove its line, or use another unit for the column"
    )]
    BeyondMeasure { file: PathBuf },
    /// A sample without a label.
    #[error("{file} line {line} has no label: fill it in or remove the line")]
    NoLabel {
        file: PathBuf,
        /// The line of the row.
        line: u64,
    },
    /// A label that is missing among numbers.
    #[error(
        "{file} line {line} has no label: column {column} holds '{cell}' among numbers: remove such lines, or use \
         target=class if the column holds names of classes"
    )]
    GapAmongNumbers {
        file: PathBuf,
        /// The line of the row.
        line: u64,
        column: String,
        cell: String,
    },
    /// A number to predict that is none.
    #[error(
        "{file} line {line}: label column {column} holds '{cell}', which is not a number: give a number on every \
         line, or use target=class"
    )]
    LabelNotANumber {
        file: PathBuf,
        /// The line of the row.
        line: u64,
        /// The name of the column.
        column: String,
        /// What the cell holds.
        cell: String,
    },
    /// Other numbers to predict than the model's.
    #[error(
        "{file} has {found} columns of numbers to predict, but the model predicts {expected}: name {expected} columns \
         with label="
    )]
    OtherNumbers {
        file: PathBuf,
        /// How many there are.
        found: usize,
        /// How many the model predicts.
        expected: usize,
    },
    /// More rows than samples can be numbered.
    #[error("{file} has more than 4,294,967,295 rows: use fewer rows")]
    TooManyRows { file: PathBuf },
    /// Bytes that are no text.
    #[error("{file} line {line} is not UTF-8 text: save the file as UTF-8")]
    NotText {
        file: PathBuf,
        /// The line of the row.
        line: u64,
    },
    /// A label that the model does not know.
    #[error(
        "{file} line {line} has the label '{label}', but the training data has only the classes {classes}: use data \
         with these classes"
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

impl CsvError {
    /// Whether a cell does not fit the rule of its column, so that other columns may have the same problem.
    pub(super) fn is_of_a_column(&self) -> bool {
        matches!(
            self,
            Self::NotANumber { .. }
                | Self::DecimalComma { .. }
                | Self::MissingNumber { .. }
                | Self::TooManyCategories { .. }
        )
    }

    /// Tells which data to write in place of this one.
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
