//! What the first row of a file says about its columns, and which of them are meant.

use std::collections::BTreeSet;
use std::path::Path;

use ::csv::StringRecord;
use protocol::data::LabelColumn;
use serde::{Deserialize, Serialize};

use super::CsvError;
use crate::dataset::error::list;

/// The names that a file's header gives to its columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnNames {
    /// Those of the numbers, in the order of a model's inputs.
    pub features: Vec<String>,
    /// That of the label.
    pub label: String,
}

/// What is to be read of a file.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// The column that holds the label.
    pub(super) label: &'a LabelColumn,
    /// Whether there must be one.
    pub(super) labelled: bool,
    /// The model that it is read for, if there is one: how many numbers it takes, and how their columns are called.
    pub(super) model: Option<(usize, Option<&'a ColumnNames>)>,
}

/// The columns of a file.
pub(super) struct Columns {
    /// From the header, or else their positions.
    pub(super) names: Vec<String>,
    /// The positions of the numbers, in the order of a model's inputs.
    pub(super) features: Vec<usize>,
    /// The position of the label, where it is wanted.
    pub(super) label: Option<usize>,
    /// Whether the first row holds names and no sample.
    pub(super) has_header: bool,
}

impl Columns {
    /// Finds the columns, and whether the first row is a header: it is when any cell but the label is no number. A label
    /// column given by name needs a header to be found in. A model that knows its columns' names takes those, wherever
    /// they are and whatever else there is.
    pub(super) fn detect(file: &Path, first: &StringRecord, wanted: Wanted<'_>) -> Result<Self, CsvError> {
        if first.len() < if wanted.labelled { 2 } else { 1 } {
            return Err(CsvError::TooFewColumns { file: file.to_owned() });
        }
        let place = |name: &str| first.iter().position(|cell| cell == name);
        let label = match wanted.label {
            LabelColumn::Name(name) => place(name),
            LabelColumn::Position(position) => from_either_end(*position, first.len()),
        };
        let named = wanted.labelled && matches!(wanted.label, LabelColumn::Name(_));
        let is_text = |(position, cell): (usize, &str)| Some(position) != label && cell.parse::<f32>().is_err();
        let has_header = named || first.iter().enumerate().any(is_text);
        let names: Vec<String> = if has_header {
            first.iter().map(str::to_owned).collect()
        } else {
            (0..first.len()).map(|position| position.to_string()).collect()
        };
        let known = wanted.model.and_then(|(_, names)| names).filter(|_| has_header);
        // Where nothing else was asked for, the label is the column that it was in training.
        let label = match known {
            Some(known) if *wanted.label == LabelColumn::LAST => place(&known.label).or(label),
            _ => label,
        };
        let features = match (known, wanted.model) {
            (Some(known), _) => {
                let places = known.features.iter().map(|name| {
                    place(name).ok_or_else(|| CsvError::MissingColumn {
                        file: file.to_owned(),
                        column: name.clone(),
                        columns: list(&names),
                    })
                });
                places.collect::<Result<_, _>>()?
            }
            // Without names, and as wide as the model's samples: there is no label.
            (None, Some((features, _))) if !wanted.labelled && features == first.len() => (0..features).collect(),
            _ => (0..first.len()).filter(|&position| Some(position) != label).collect(),
        };
        let label = label.filter(|_| wanted.labelled);
        if wanted.labelled && label.is_none() {
            return Err(CsvError::UnknownColumn {
                file: file.to_owned(),
                wanted: wanted.label.to_string(),
                columns: list(&names),
            });
        }
        Ok(Self {
            names,
            features,
            label,
            has_header,
        })
    }

    /// The names that a model is to know its columns by, if the file has names and none of them twice.
    pub(super) fn known_names(&self) -> Option<ColumnNames> {
        let label = self.label.filter(|_| self.has_header)?;
        let different: BTreeSet<&String> = self.names.iter().collect();
        if different.len() < self.names.len() {
            return None;
        }
        Some(ColumnNames {
            features: self.features.iter().map(|&at| self.names[at].clone()).collect(),
            label: self.names[label].clone(),
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
