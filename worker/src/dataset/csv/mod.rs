//! Reader of tables: CSV and other separated text, and Parquet files, which are read as the text that they would be
//! saved as. Columns of numbers and texts become inputs; label columns become the class or numbers to predict.
//!
//! A table goes through four forms, each in memory or in a scratch file: cells as written, inputs made of them in the
//! order of samples, scaled inputs, and the training and test parts of a dataset.

mod bounded;
mod cell;
mod columns;
mod counted;
mod date;
mod encoding;
mod error;
mod labels;
mod learning;
#[cfg(feature = "parquet")]
mod parquet;
mod rows;
mod separator;
mod survey;
mod table;
mod words;

use std::borrow::Cow;
use std::path::Path;

use protocol::job::data::{Column, DataSpec, Separator, TableOptions, TestSplit};
use protocol::job::model::Shape;

pub use columns::ColumnNames;
use columns::{ModelColumns, Wanted};
pub use encoding::Encoding;
use encoding::Expander;
pub(crate) use encoding::width;
pub use error::CsvError;
use labels::LabelColumn;
pub(super) use labels::Labels;
use table::Table;

use super::budget::Budget;
use super::floats::{self, Floats, FloatsWriter};
use super::progress::Watcher;
use super::samples::Values;
use super::{Answers, Dataset, DatasetError, Known, Samples, Scaling, Target, parts};

/// File format of a table.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// A text file; the separator of its cells is detected if it is not given.
    Text(Option<Separator>),
    Parquet,
}

impl Form {
    /// Returns the file format of data that is a table.
    pub(super) fn of(spec: &DataSpec) -> Self {
        match spec {
            DataSpec::Csv { separator, .. } => Self::Text(*separator),
            _ => Self::Parquet,
        }
    }
}

/// A table's file with its format and the limits on memory while the file is read.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) file: &'a Path,
    pub(super) form: Form,
    pub(super) watcher: Watcher<'a>,
    /// Bytes of a table's numbers that stay in memory; larger tables use a scratch file.
    pub(super) bytes_max: u64,
    /// Memory that everything else than the table's numbers may take: texts, labels and single rows.
    pub(super) budget: Budget,
}

impl<'a> Source<'a> {
    pub(super) fn new(file: &'a Path, form: Form, watcher: Watcher<'a>) -> Self {
        Self {
            file,
            form,
            watcher,
            bytes_max: floats::bytes_max(),
            budget: Budget::of_machine(),
        }
    }
}

/// Reads a table to train on: splits its rows by the seed, or takes test rows from another file, and standardises its
/// columns. With `known`, reads it to measure that model.
pub(super) fn open(
    source: Source<'_>,
    test_file: Option<&Path>,
    options: &TableOptions,
    seed: u64,
    known: Option<Known<'_>>,
) -> Result<Dataset, DatasetError> {
    let Some(test_file) = test_file else {
        let share = match options.test_split {
            TestSplit::Share(share) => share,
            TestSplit::File(_) => 0.0,
        };
        return split(source, options, |rows| parts::by_seed(rows, share, seed), known);
    };
    let test_source = Source {
        file: test_file,
        ..source
    };
    // A model is measured on the test file alone.
    let only_test = |rows: usize| (Vec::new(), (0..rows as u32).collect());
    if known.is_some() {
        return split(test_source, options, only_test, known);
    }
    let train = split(source, options, |rows| ((0..rows as u32).collect(), Vec::new()), None)?;
    let test = split(test_source, options, only_test, Some(train.known()))?;
    train.with_test(test.test)
}

/// Reads a table; `parts` decides from the number of rows which are training rows and which test rows.
fn split(
    source: Source<'_>,
    options: &TableOptions,
    parts: impl FnOnce(usize) -> (Vec<u32>, Vec<u32>),
    known: Option<Known<'_>>,
) -> Result<Dataset, DatasetError> {
    let kind = known.map(|known| known.target.kind());
    let encodings = known.map(|known| encodings(known));
    let wanted = Wanted {
        options,
        labelled: true,
        kind: kind.or(options.target),
        model: known.zip(encodings.as_deref()).map(model),
    };
    let file = source.file;
    let table = Table::read(source, wanted)?;
    if u32::try_from(table.cells.rows()).is_err() {
        return Err(CsvError::TooManyRows { file: file.to_owned() }.into());
    }
    let (train, test) = parts(table.cells.rows());
    let encodings = match &encodings {
        Some(encodings) => {
            check_width(
                file,
                table.rules.len(),
                encodings.len(),
                known.map(|known| known.scaling),
            )?;
            learning::filled(encodings, options, known.map(|known| known.scaling))
        }
        None => learning::learn(&table, options, &train)?,
    };
    let order = || train.iter().chain(&test).copied();
    let features = width(&encodings).unwrap_or_default();
    if features == 0 {
        return Err(CsvError::NothingLeft { file: file.to_owned() }.into());
    }
    let mut inputs = expand(source, &table, &encodings, order())?;
    let (target, answers) = answers(
        file,
        table.labels.decide(file)?,
        table.label_names,
        known.map(|known| known.target),
        &train,
    )?;
    let scaling = match known {
        // The test rows must not influence the model, so only the training rows decide the scaling.
        None => {
            let standard = Scaling::standard_of(features, |take| inputs.each(0..train.len(), take))?;
            learning::pooled(standard, &encodings)
        }
        Some(known) => known.scaling.clone(),
    };
    scale(file, &mut inputs, &scaling)?;
    let (train_values, test_values) = inputs.split_at(train.len());
    let part = |values: Values, rows: &[u32]| {
        let mut chosen = Answers::default();
        answers.gather(rows, &mut chosen);
        Samples::new(features, values, chosen)
    };
    let (train, test) = (part(train_values, &train), part(test_values, &test));
    let sure = wanted.kind.is_some() || options.label.len() > 1;
    let remarks = remark(&target).filter(|_| !sure);
    let mut dataset = Dataset::new(
        Shape::Flat(features),
        table.names,
        learning::kept(encodings),
        target,
        scaling,
        train,
        test,
    )?;
    dataset.remarks.extend(remarks);
    Ok(dataset)
}

/// Converts the rows of a table to model inputs, in the given order.
fn expand(
    source: Source<'_>,
    table: &Table,
    encodings: &[Encoding],
    order: impl Iterator<Item = u32>,
) -> Result<Floats, DatasetError> {
    let columns = table.texts.iter().map(Vec::as_slice).zip(&table.bags);
    let expander = Expander::new(encodings, columns);
    let features = width(encodings).unwrap_or_default();
    let mut inputs = FloatsWriter::new(features, source.file, source.bytes_max);
    let (mut row, mut made) = (Vec::new(), Vec::new());
    for at in order {
        table.cells.read(at as usize, &mut row)?;
        expander.expand(at as usize, &row, &mut made);
        inputs.push(&made)?;
    }
    inputs.finish()
}

/// Scales inputs for a model; fails if one is not finite afterwards.
fn scale(file: &Path, inputs: &mut Floats, scaling: &Scaling) -> Result<(), DatasetError> {
    let mut all_finite = true;
    inputs.change(|row| {
        scaling.apply(row);
        all_finite &= row.iter().all(|value| value.is_finite());
    })?;
    if all_finite {
        return Ok(());
    }
    Err(CsvError::BeyondMeasure { file: file.to_owned() }.into())
}

/// Makes the target (classes or numbers) and the expected output of every row from a table's labels. Numbers are
/// standardised by the training rows.
pub(super) fn answers(
    file: &Path,
    found: LabelColumn,
    names: Vec<String>,
    known: Option<&Target>,
    train: &[u32],
) -> Result<(Target, Answers), CsvError> {
    match found {
        LabelColumn::Classes(texts) => Ok(match known {
            None => {
                let (classes, labels) = texts.classes();
                (Target::Classes(classes), Answers::Labels(labels))
            }
            Some(known) => {
                let labels = texts.among(known.classes(), file)?;
                (known.clone(), Answers::Labels(labels))
            }
        }),
        LabelColumn::Numbers(mut values) => {
            let width = names.len();
            let target = match known {
                None => {
                    let rows = train.iter().map(|&row| &values[row as usize * width..][..width]);
                    Target::standardised(names, &Scaling::standard(width, &rows))
                }
                Some(known) if known.outputs() == width => known.clone(),
                Some(known) => {
                    return Err(CsvError::OtherNumbers {
                        file: file.to_owned(),
                        found: width,
                        expected: known.outputs(),
                    });
                }
            };
            let scaling = target.scaling();
            values.chunks_exact_mut(width).for_each(|row| scaling.apply(row));
            if values.iter().any(|value| !value.is_finite()) {
                return Err(CsvError::BeyondMeasure { file: file.to_owned() });
            }
            Ok((target, Answers::Numbers { width, values }))
        }
    }
}

/// Returns a remark for the user if a label could as well be of the other kind (class or number).
fn remark(target: &Target) -> Option<String> {
    match target {
        Target::Numbers(numbers) => numbers.first().map(|number| {
            let name = &number.name;
            format!("{name} is taken as a number to predict: use target=class if its values are names of classes")
        }),
        Target::Classes(classes) if classes.len() > 2 && classes.iter().all(|class| class.parse::<f32>().is_ok()) => {
            Some(format!(
                "the label is taken as one of {} classes: use target=number if it is a number to predict",
                classes.len()
            ))
        }
        Target::Classes(_) | Target::Module => None,
    }
}

/// Reads the samples of a file in their order for a model; labels are not needed.
pub(super) fn inputs(source: Source<'_>, options: &TableOptions, known: Known<'_>) -> Result<Samples, DatasetError> {
    let encodings = encodings(known);
    let wanted = Wanted {
        options,
        labelled: false,
        kind: None,
        model: Some(model((known, &encodings))),
    };
    let table = Table::read(source, wanted)?;
    check_width(source.file, table.rules.len(), encodings.len(), Some(known.scaling))?;
    let encodings = learning::filled(&encodings, options, Some(known.scaling));
    let rows = 0..table.cells.rows() as u32;
    let mut inputs = expand(source, &table, &encodings, rows)?;
    scale(source.file, &mut inputs, known.scaling)?;
    let (_, values) = inputs.split_at(0);
    Ok(Samples::unlabelled(known.input.elements(), values))
}

/// Reads the cells of one column as written, one per row.
pub(super) fn column(
    source: Source<'_>,
    options: &TableOptions,
    known: Known<'_>,
    column: &Column,
) -> Result<Vec<String>, DatasetError> {
    let encodings = encodings(known);
    let wanted = Wanted {
        options,
        labelled: false,
        kind: None,
        model: Some(model((known, &encodings))),
    };
    table::cells_of(source, wanted, column)
}

/// Returns the encoding (conversion to inputs) of each column that a trained model takes.
fn encodings(known: Known<'_>) -> Cow<'_, [Encoding]> {
    if known.encodings.is_empty() {
        return vec![Encoding::Number { fill: None }; known.input.elements()].into();
    }
    known.encodings.into()
}

/// Returns the names and encodings of a model's columns.
fn model<'a>((known, encodings): (Known<'a>, &'a [Encoding])) -> ModelColumns<'a> {
    ModelColumns {
        names: known.columns,
        encodings,
    }
}

/// Checks that a table has as many columns as a model takes, and that the model does not take images.
fn check_width(file: &Path, found: usize, columns: usize, scaling: Option<&Scaling>) -> Result<(), DatasetError> {
    let expected = match scaling {
        Some(Scaling::Unit) => "images".to_owned(),
        _ if found == columns => return Ok(()),
        _ => format!("{columns} columns"),
    };
    Err(DatasetError::OtherInputs {
        file: file.to_owned(),
        found: format!("{found} columns beside the label"),
        expected,
    })
}

#[cfg(test)]
mod bombs;
#[cfg(test)]
mod tables_people_have;
#[cfg(test)]
mod tests;
