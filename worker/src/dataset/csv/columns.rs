//! What the first row of a file says about its columns.

use std::path::Path;

use ::csv::StringRecord;
use protocol::data::LabelColumn;

use super::CsvError;
use crate::dataset::error::list;

/// The columns of a file.
pub(super) struct Columns {
    /// From the header, or else their positions.
    pub(super) names: Vec<String>,
    /// The position of the label.
    pub(super) label: usize,
    /// Whether the first row holds names and no sample.
    pub(super) has_header: bool,
}

impl Columns {
    /// Finds the label column, and whether the first row is a header: it is when any cell but the label is no
    /// number. A label column given by name needs a header to be found in.
    pub(super) fn detect(file: &Path, first: &StringRecord, wanted: &LabelColumn) -> Result<Self, CsvError> {
        if first.len() < 2 {
            return Err(CsvError::TooFewColumns { file: file.to_owned() });
        }
        let label = match wanted {
            LabelColumn::Name(name) => first.iter().position(|cell| cell == name),
            LabelColumn::Position(position) => from_either_end(*position, first.len()),
        };
        let named = matches!(wanted, LabelColumn::Name(_));
        let is_text = |(position, cell): (usize, &str)| Some(position) != label && cell.parse::<f32>().is_err();
        let has_header = named || first.iter().enumerate().any(is_text);
        let names: Vec<String> = if has_header {
            first.iter().map(str::to_owned).collect()
        } else {
            (0..first.len()).map(|position| position.to_string()).collect()
        };
        let Some(label) = label else {
            return Err(CsvError::UnknownColumn {
                file: file.to_owned(),
                wanted: wanted.to_string(),
                columns: list(&names),
            });
        };
        Ok(Self {
            names,
            label,
            has_header,
        })
    }
}

/// The place that a position means, where negative ones count from the end.
fn from_either_end(position: i64, columns: usize) -> Option<usize> {
    let place = if position < 0 {
        position + columns as i64
    } else {
        position
    };
    usize::try_from(place).ok().filter(|&place| place < columns)
}
