//! Columns of numbers and a class, in one file of comma-separated values.

mod classes;
mod columns;
mod error;
mod rows;
mod table;

use std::path::Path;

use protocol::data::LabelColumn;
use protocol::model::Shape;
use protocol::rng::CounterRng;

pub use columns::ColumnNames;
use columns::Wanted;
pub use error::CsvError;
use table::Table;

use super::samples::Values;
use super::{Dataset, DatasetError, Known, Samples, Scaling};

/// The stream of a run's seed that decides which rows are kept for testing ("csvsplit" in ASCII, so that no other
/// use of the seed picks it by chance). Changing it changes every split.
const SPLIT_STREAM: u64 = u64::from_be_bytes(*b"csvsplit");

/// Reads a file, splits its rows by the seed and standardises its columns.
pub(super) fn open(
    file: &Path,
    label: &LabelColumn,
    test_fraction: f64,
    seed: u64,
    known: Option<Known<'_>>,
) -> Result<Dataset, DatasetError> {
    let wanted = Wanted {
        label,
        labelled: true,
        model: known.map(model),
    };
    let table = Table::read(file, wanted)?;
    let (classes, labels) = match known {
        None => classes::from_labels(&table),
        Some(known) => (known.classes.to_vec(), classes::among(&table, known.classes, file)?),
    };

    let mut order: Vec<usize> = (0..labels.len()).collect();
    CounterRng::new(seed, SPLIT_STREAM).shuffle(&mut order);
    let (test, train) = order.split_at(test_count(labels.len(), test_fraction));

    let scaling = match known {
        // The test part must not leak into what the model is trained with, so the training part alone decides.
        None => Scaling::standard(table.columns, train.iter().map(|&row| table.row(row))),
        Some(known) => {
            check_width(file, table.columns, known.scaling)?;
            known.scaling.clone()
        }
    };
    let part = |rows: &[usize]| {
        let values = scaled(file, &table, rows.iter().copied(), &scaling)?;
        let labels = rows.iter().map(|&row| labels[row]).collect();
        Ok::<_, CsvError>(Samples::new(table.columns, values, labels))
    };
    let (train, test) = (part(train)?, part(test)?);
    let input = Shape::Flat(table.columns);
    Ok(Dataset::new((input, table.names), classes, scaling, train, test))
}

/// Reads the samples of a file in their order for a model, whether they have labels or not.
pub(super) fn inputs(file: &Path, label: &LabelColumn, known: Known<'_>) -> Result<Samples, DatasetError> {
    let wanted = Wanted {
        label,
        labelled: false,
        model: Some(model(known)),
    };
    let table = Table::read(file, wanted)?;
    check_width(file, table.columns, known.scaling)?;
    let values = scaled(file, &table, 0..table.rows, known.scaling)?;
    Ok(Samples::unlabelled(table.columns, values))
}

/// What a model knows of its columns.
fn model(known: Known<'_>) -> (usize, Option<&ColumnNames>) {
    (known.input.elements(), known.columns)
}

/// The numbers of some rows as a model sees them.
fn scaled(
    file: &Path,
    table: &Table,
    rows: impl ExactSizeIterator<Item = usize>,
    scaling: &Scaling,
) -> Result<Values, CsvError> {
    let mut values = Vec::with_capacity(rows.len() * table.columns);
    for row in rows {
        let start = values.len();
        values.extend_from_slice(table.row(row));
        scaling.apply(&mut values[start..]);
    }
    if values.iter().any(|value| !value.is_finite()) {
        return Err(CsvError::BeyondMeasure { file: file.to_owned() });
    }
    Ok(Values::Floats(values))
}

/// How many of the samples are kept for testing: the nearest whole number, but at least one.
fn test_count(samples: usize, fraction: f64) -> usize {
    ((samples as f64 * fraction).round() as usize).clamp(samples.min(1), samples)
}

/// Checks that a model's scaling is one for this many columns.
fn check_width(file: &Path, columns: usize, scaling: &Scaling) -> Result<(), DatasetError> {
    let expected = match scaling {
        Scaling::Standard { mean, deviation } if [mean.len(), deviation.len()] == [columns; 2] => {
            return Ok(());
        }
        Scaling::Standard { mean, .. } => format!("{} columns of numbers", mean.len()),
        Scaling::Unit => "images".to_owned(),
    };
    Err(DatasetError::OtherInputs {
        file: file.to_owned(),
        found: format!("{columns} columns of numbers beside the label"),
        expected,
    })
}

#[cfg(test)]
mod tests;
