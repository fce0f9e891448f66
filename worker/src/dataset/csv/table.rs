//! Reads and checks every cell of a file.

use std::collections::HashMap;
use std::path::Path;

use super::CsvError;
use super::columns::{ColumnNames, Columns, Wanted};
use super::rows::Rows;
use crate::dataset::DatasetError;

/// The samples of a file as they were written.
pub(super) struct Table {
    /// How many columns hold numbers.
    pub(super) columns: usize,
    /// How the columns are called, if they are.
    pub(super) names: Option<ColumnNames>,
    /// How many rows there are.
    pub(super) rows: usize,
    /// The numbers, row by row.
    cells: Vec<f32>,
    /// The label of each row, as its place in `texts`; none where labels are not wanted.
    pub(super) labels: Vec<usize>,
    /// Each label that occurs, in the order of first occurrence.
    pub(super) texts: Vec<LabelText>,
}

/// A label as it was written.
pub(super) struct LabelText {
    pub(super) text: String,
    /// Where it occurs first.
    pub(super) line: u64,
}

impl Table {
    /// The numbers of one row.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        &self.cells[row * self.columns..][..self.columns]
    }

    /// Reads a file to its end. There is at least one row in what is returned.
    pub(super) fn read(file: &Path, wanted: Wanted<'_>) -> Result<Self, DatasetError> {
        let mut rows = Rows::open(file)?;
        if !rows.advance()? {
            return Err(DatasetError::Csv(CsvError::Empty { file: file.to_owned() }));
        }
        let columns = Columns::detect(file, &rows.record, wanted)?;
        let first_line = rows.line;
        let mut table = Self {
            columns: columns.features.len(),
            names: columns.known_names(),
            rows: 0,
            cells: Vec::new(),
            labels: Vec::new(),
            texts: Vec::new(),
        };
        let mut known_texts = HashMap::new();
        let mut more = !columns.has_header || rows.advance()?;
        while more {
            if rows.record.len() != columns.names.len() {
                return Err(DatasetError::Csv(CsvError::Ragged {
                    file: file.to_owned(),
                    line: rows.line,
                    found: rows.record.len(),
                    first_line,
                    expected: columns.names.len(),
                }));
            }
            table.push(&rows, &columns, &mut known_texts)?;
            more = rows.advance()?;
        }
        if table.rows == 0 {
            return Err(DatasetError::Csv(CsvError::HeaderOnly { file: file.to_owned() }));
        }
        Ok(table)
    }

    /// Takes in a row whose width was checked.
    fn push(
        &mut self,
        rows: &Rows<'_>,
        columns: &Columns,
        known_texts: &mut HashMap<String, usize>,
    ) -> Result<(), CsvError> {
        self.rows += 1;
        for &position in &columns.features {
            let cell = &rows.record[position];
            let number = cell.parse().ok().filter(|number: &f32| number.is_finite());
            self.cells.push(number.ok_or_else(|| CsvError::NotANumber {
                file: rows.file.to_owned(),
                line: rows.line,
                column: columns.names[position].clone(),
                cell: cell.to_owned(),
            })?);
        }
        let Some(label) = columns.label else {
            return Ok(());
        };
        let cell = &rows.record[label];
        if cell.is_empty() {
            return Err(CsvError::NoLabel {
                file: rows.file.to_owned(),
                line: rows.line,
            });
        }
        if let Some(&text) = known_texts.get(cell) {
            self.labels.push(text);
        } else {
            known_texts.insert(cell.to_owned(), self.texts.len());
            self.labels.push(self.texts.len());
            self.texts.push(LabelText {
                text: cell.to_owned(),
                line: rows.line,
            });
        }
        Ok(())
    }
}
