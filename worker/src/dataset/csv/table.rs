//! Reads and checks all cells of a table.

use protocol::job::data::{Column, TextRule};

use super::cell::{Cell, has_decimal_comma};
use super::columns::{ColumnNames, Columns, Rule, Wanted};
use super::date;
use super::labels::{Labels, Text, Texts};
use super::rows::Rows;
use super::survey::{CATEGORIES_MAX, Profile, diagnose};
use super::words::Bags;
use super::{CsvError, Source};
use crate::dataset::DatasetError;
use crate::dataset::budget::Budget;
use crate::dataset::error::list;
use crate::dataset::floats::{Floats, FloatsWriter};

/// A table's cells as written, before they become inputs.
pub(super) struct Table {
    /// Reading rules of the columns that inputs are made of.
    pub(super) rules: Vec<Rule>,
    /// Names of the columns, if the table has them.
    pub(super) names: Option<ColumnNames>,
    /// Cells of the columns that inputs are made of, row by row: numbers, NaN for missing ones, and indices of texts.
    /// There is at least one row.
    pub(super) cells: Floats,
    /// The different texts of each column of categories, in the order of first occurrence; empty for other columns.
    pub(super) texts: Vec<Vec<String>>,
    /// Words of each row in columns of words; empty for other columns.
    pub(super) bags: Vec<Bags>,
    /// Labels of all rows; empty if labels are not needed.
    pub(super) labels: Labels,
    /// Names of the table's label columns.
    pub(super) label_names: Vec<String>,
    /// True if most cells of some column of categories are numbers with a decimal comma.
    decimal_commas: bool,
}

impl Table {
    /// Reads a table's file to its end. For training data, an error reports the problems of all columns.
    pub(super) fn read(source: Source<'_>, wanted: Wanted<'_>) -> Result<Self, DatasetError> {
        let mut columns = detect(source, wanted)?;
        if let (Some(rule), None) = (wanted.options.text, wanted.model) {
            apply_to_texts(&mut columns, source, rule)?;
        }
        let read = Self::read_columns(source, &columns, wanted);
        let is_doubtful = match &read {
            Ok(table) => table.decimal_commas,
            Err(DatasetError::Csv(error)) => error.is_of_a_column(),
            Err(_) => false,
        };
        // For training data, one error reports the problems of all columns.
        if is_doubtful && wanted.model.is_none() {
            let profiles = survey(source, &columns)?;
            if let Some(found) = diagnose(source.file, &columns, &profiles, wanted.options) {
                return Err(found.into());
            }
        }
        read
    }

    fn read_columns(source: Source<'_>, columns: &Columns, wanted: Wanted<'_>) -> Result<Self, DatasetError> {
        let mut table = Reader {
            cells: FloatsWriter::new(columns.features.len(), source.file, source.bytes_max),
            texts: columns.features.iter().map(|_| Texts::default()).collect(),
            bags: columns.features.iter().map(|_| Bags::default()).collect(),
            labels: Labels::new(columns.labels.len(), wanted.kind),
            row: Vec::new(),
            commas: vec![0; columns.features.len()],
            budget: source.budget,
        };
        let mut any = false;
        each_row(source, columns, |rows| {
            any = true;
            table.push(rows, columns)
        })?;
        if !any {
            return Err(DatasetError::Csv(CsvError::HeaderOnly {
                file: source.file.to_owned(),
            }));
        }
        let texts = table.texts.into_iter().map(|texts| {
            let different = texts.different.into_iter();
            different.map(|text| text.cell).collect()
        });
        let cells = table.cells.finish()?;
        Ok(Self {
            rules: columns.features.iter().map(|&(_, rule)| rule).collect(),
            names: columns.known_names(),
            decimal_commas: table.commas.iter().any(|&commas| 2 * commas > cells.rows() as u64),
            cells,
            texts: texts.collect(),
            bags: table.bags,
            labels: table.labels,
            label_names: columns.labels.iter().map(|&at| columns.names[at].clone()).collect(),
        })
    }
}

/// Reads the cells of one column as written, one per row.
pub(super) fn cells_of(source: Source<'_>, wanted: Wanted<'_>, column: &Column) -> Result<Vec<String>, DatasetError> {
    let columns = detect(source, wanted)?;
    let place = columns.place(column).ok_or_else(|| CsvError::NoSuchColumn {
        file: source.file.to_owned(),
        option: "--id",
        wanted: column.to_string(),
        columns: list(&columns.names),
    })?;
    let mut cells: Vec<String> = Vec::new();
    let mut budget = source.budget;
    each_row(source, &columns, |rows| {
        let cell = &rows.record[place];
        let bytes = (cell.len() + 2 * size_of::<String>()) as u64;
        budget.take(bytes, source.file, || format!("too much text in column {column}"))?;
        cells.push(cell.to_owned());
        Ok(())
    })?;
    Ok(cells)
}

/// Finds the columns of a table by its first row.
fn detect(source: Source<'_>, wanted: Wanted<'_>) -> Result<Columns, DatasetError> {
    let rows = open(source)?;
    Ok(Columns::detect(source.file, &rows.record, rows.named, wanted)?)
}

/// Opens a table's file and reads its first row.
fn open(source: Source<'_>) -> Result<Rows<'_>, DatasetError> {
    let mut rows = Rows::open(source)?;
    if rows.advance()? {
        return Ok(rows);
    }
    Err(DatasetError::Csv(CsvError::Empty {
        file: source.file.to_owned(),
    }))
}

/// Reads a table and passes every sample's row to `take`, after checking its number of columns.
fn each_row(
    source: Source<'_>,
    columns: &Columns,
    mut take: impl FnMut(&Rows<'_>) -> Result<(), DatasetError>,
) -> Result<(), DatasetError> {
    let mut rows = open(source)?;
    let first_line = rows.line;
    let mut more = !columns.has_header || rows.advance()?;
    while more {
        if rows.record.len() != columns.names.len() {
            return Err(DatasetError::Csv(CsvError::Ragged {
                file: source.file.to_owned(),
                line: rows.line,
                found: rows.record.len(),
                first_line,
                expected: columns.names.len(),
            }));
        }
        take(&rows)?;
        more = rows.advance()?;
    }
    Ok(())
}

/// Examines every cell of a table, for messages about all columns.
fn survey(source: Source<'_>, columns: &Columns) -> Result<Vec<Profile>, DatasetError> {
    let mut profiles: Vec<Profile> = columns.names.iter().map(|_| Profile::default()).collect();
    let mut budget = source.budget;
    each_row(source, columns, |rows| {
        for (profile, cell) in profiles.iter_mut().zip(&rows.record) {
            let kept = profile.push(cell, rows.line);
            budget.take(kept, source.file, too_much_text)?;
        }
        Ok(())
    })?;
    Ok(profiles)
}

/// Sets the reading rule of every column that holds a text and has no rule of its own. Reads the whole file to find
/// these columns.
fn apply_to_texts(columns: &mut Columns, source: Source<'_>, rule: TextRule) -> Result<(), DatasetError> {
    let profiles = survey(source, columns)?;
    columns.features.retain_mut(|(at, how)| {
        let profile = &profiles[*at];
        // Numbers with decimal commas are not texts: reading them as numbers reports the error.
        if !matches!(how, Rule::Number { .. }) || !profile.holds_text() || profile.holds_decimal_commas() {
            return true;
        }
        match rule {
            TextRule::OneHot => *how = Rule::Category,
            TextRule::Hash(inputs) => *how = Rule::Hash(inputs),
            TextRule::Drop => return false,
        }
        true
    });
    if columns.features.is_empty() {
        let file = source.file.to_owned();
        return Err(DatasetError::Csv(CsvError::NothingLeft { file }));
    }
    Ok(())
}

/// Returns the error message for a table whose texts exceed the memory budget.
fn too_much_text() -> String {
    "too much different text".into()
}

/// State of a table while its rows are read.
struct Reader {
    cells: FloatsWriter,
    texts: Vec<Texts>,
    bags: Vec<Bags>,
    labels: Labels,
    row: Vec<f32>,
    /// Number of cells with decimal commas in each column of categories.
    commas: Vec<u64>,
    /// Memory that is left for the table's texts and labels.
    budget: Budget,
}

impl Reader {
    fn push(&mut self, rows: &Rows<'_>, columns: &Columns) -> Result<(), DatasetError> {
        self.row.clear();
        let kept = self.texts.iter_mut().zip(&mut self.bags).zip(&mut self.commas);
        for (&(position, rule), ((texts, bags), commas)) in columns.features.iter().zip(kept) {
            let cell = &rows.record[position];
            let column = &columns.names[position];
            self.row.push(match rule {
                Rule::Number { may_miss } => match Cell::read(cell) {
                    Cell::Number(number) => number,
                    Cell::Missing if may_miss => f32::NAN,
                    other => return Err(not_a_number(rows, column, cell, other).into()),
                },
                Rule::Date { may_miss } => match date::read(cell) {
                    Some(days) => days as f32,
                    None if may_miss && Cell::read(cell) == Cell::Missing => f32::NAN,
                    None => return Err(not_a_date(rows, column, cell).into()),
                },
                // The words are stored beside the cells.
                Rule::Words(inputs) => {
                    let words = bags.push(cell, inputs);
                    self.budget.take(words, rows.file, || "too many words".into())?;
                    0.0
                }
                Rule::Hash(inputs) => super::Encoding::place(cell, inputs) as f32,
                Rule::Category => {
                    *commas += u64::from(has_decimal_comma(cell));
                    let before = texts.bytes;
                    let place = texts.place(cell, || Text {
                        cell: cell.to_owned(),
                        column: column.clone(),
                        line: rows.line,
                    });
                    self.budget.take(texts.bytes - before, rows.file, too_much_text)?;
                    if texts.different.len() > CATEGORIES_MAX {
                        return Err(DatasetError::Csv(CsvError::TooManyCategories {
                            file: rows.file.to_owned(),
                            column: column.clone(),
                            most: CATEGORIES_MAX,
                            advice: "use only texts that the model was trained on".into(),
                        }));
                    }
                    place as f32
                }
            });
        }
        self.cells.push(&self.row)?;
        for &position in &columns.labels {
            let cell = &rows.record[position];
            if cell.is_empty() {
                return Err(DatasetError::Csv(CsvError::NoLabel {
                    file: rows.file.to_owned(),
                    line: rows.line,
                }));
            }
            let before = self.labels.bytes();
            self.labels.push(rows.file, &columns.names[position], cell, rows.line)?;
            let bytes = self.labels.bytes() - before;
            self.budget.take(bytes, rows.file, || "too many labels".into())?;
        }
        Ok(())
    }
}

/// Returns the error for a cell that is not a date.
fn not_a_date(rows: &Rows<'_>, column: &str, cell: &str) -> CsvError {
    let (file, line) = (rows.file.to_owned(), rows.line);
    let (column, cell) = (column.to_owned(), cell.to_owned());
    match Cell::read(&cell) {
        Cell::Missing => CsvError::MissingNumber {
            file,
            line,
            column,
            cell,
        },
        _ => CsvError::NotADate {
            file,
            line,
            column,
            cell,
        },
    }
}

/// Returns the error for a cell that is not a number.
fn not_a_number(rows: &Rows<'_>, column: &str, cell: &str, found: Cell) -> CsvError {
    let (file, line) = (rows.file.to_owned(), rows.line);
    let (column, cell) = (column.to_owned(), cell.to_owned());
    match found {
        Cell::Missing => CsvError::MissingNumber {
            file,
            line,
            column,
            cell,
        },
        _ if has_decimal_comma(&cell) => CsvError::DecimalComma {
            file,
            line,
            column,
            cell,
        },
        _ => CsvError::NotANumber {
            file,
            line,
            column,
            cell,
            advice: "the model takes numbers in this column; correct the cell".into(),
        },
    }
}
