//! Finds the columns of a table by its first row, and decides which are used and how each is read.

use std::collections::BTreeSet;
use std::path::Path;

use ::csv::StringRecord;
use protocol::job::data::{Column, TableOptions, TargetKind};
use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::{CsvError, Encoding};
use crate::dataset::error::list;

/// Names of a table's columns, from its header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnNames {
    /// Names of the columns that a model's inputs are made of, in their order.
    pub features: Vec<String>,
    /// Names of the columns that a model predicts.
    #[serde(rename = "label", with = "one_or_more")]
    pub labels: Vec<String>,
}

/// Requirements for reading a table: options, labels and model.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) options: &'a TableOptions,
    /// True if the table must have the label columns.
    pub(super) labelled: bool,
    /// Kind of the target (class or number), if it is known.
    pub(super) kind: Option<TargetKind>,
    /// Columns of the model that the table is read for, if there is one.
    pub(super) model: Option<ModelColumns<'a>>,
}

/// Names and encodings of the columns that a model's inputs are made of.
#[derive(Clone, Copy)]
pub(super) struct ModelColumns<'a> {
    pub(super) names: Option<&'a ColumnNames>,
    /// Encoding (conversion to model inputs) of each column.
    pub(super) encodings: &'a [Encoding],
}

/// Rule by which the cells of a column are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Number {
        /// True if a cell of the column may be empty or mark a missing number; else such a cell is an error.
        may_miss: bool,
    },
    /// Cells of the column are categories: the different texts that occur in it.
    Category,
    /// Cells of the column are texts, each hashed to one of this many inputs.
    Hash(u32),
    /// Cells of the column are texts whose words are hashed to this many inputs.
    Words(u32),
    Date {
        /// True if a cell of the column may be empty or mark a missing date; else such a cell is an error.
        may_miss: bool,
    },
}

/// Columns of a table: their names, their use (input or label) and their reading rules.
pub(super) struct Columns {
    /// Names of the table's columns from its header or, without a header, their positions.
    pub(super) names: Vec<String>,
    /// Positions of the columns that inputs are made of, in their order, with their reading rules.
    pub(super) features: Vec<(usize, Rule)>,
    /// Positions of the label columns; empty if labels are not needed.
    pub(super) labels: Vec<usize>,
    /// True if the first row holds names and no sample.
    pub(super) has_header: bool,
}

impl Columns {
    /// Finds a table's label and input columns by its first row, which is a header if `named` is true or if its cells
    /// show it. A model that knows its columns' names gets the columns of these names, wherever they are; all others
    /// are ignored.
    pub(super) fn detect(file: &Path, first: &StringRecord, named: bool, wanted: Wanted<'_>) -> Result<Self, CsvError> {
        if first.len() < if wanted.labelled { 2 } else { 1 } {
            return Err(CsvError::TooFewColumns { file: file.to_owned() });
        }
        let options = wanted.options;
        let place = |name: &str| first.iter().position(|cell| cell == name);
        let find = |column: &Column| match column {
            Column::Name(name) => place(name),
            Column::Position(position) => from_either_end(*position, first.len()),
        };
        let labels: Vec<Option<usize>> = options.label.iter().map(find).collect();
        let has_header = named || has_header(first, wanted, &labels, find);
        let names: Vec<String> = if has_header {
            first.iter().map(str::to_owned).collect()
        } else {
            (0..first.len()).map(|position| position.to_string()).collect()
        };
        let known = wanted.model.and_then(|model| model.names).filter(|_| has_header);
        // If no label is requested, the labels are the columns that they were in training.
        let labels = match known {
            Some(known) if options.label == [Column::LAST] => {
                let found: Option<Vec<usize>> = known.labels.iter().map(|name| place(name)).collect();
                found.map_or(labels, |found| found.into_iter().map(Some).collect())
            }
            _ => labels,
        };
        let rules = if wanted.model.is_none() {
            rules(file, options, &names, find)?
        } else {
            options.drop.iter().map(|column| (find(column), None)).collect()
        };
        let dropped = |at: usize| rules.contains(&(Some(at), None));
        let others = || (0..first.len()).filter(|&at| !labels.contains(&Some(at)) && !dropped(at));
        let places: Vec<usize> = match (known, wanted.model) {
            (Some(known), _) => {
                let missing: Vec<String> = known
                    .features
                    .iter()
                    .filter(|name| place(name).is_none())
                    .cloned()
                    .collect();
                if !missing.is_empty() {
                    return Err(CsvError::MissingColumns {
                        file: file.to_owned(),
                        missing: missing_text(&missing),
                        columns: list(&names),
                    });
                }
                known.features.iter().filter_map(|name| place(name)).collect()
            }
            // Columns without names, as many as the model takes: there is no label.
            (None, Some(model)) if !wanted.labelled && model.encodings.len() == first.len() => {
                (0..first.len()).collect()
            }
            _ => others().collect(),
        };
        if places.is_empty() {
            return Err(CsvError::TooFewColumns { file: file.to_owned() });
        }
        let features = places.iter().enumerate().map(|(number, &at)| {
            let rule = match wanted.model.map(|model| model.encodings.get(number)) {
                Some(encoding) => encoding.map(|encoding| known_rule(encoding, options)),
                None => rules
                    .iter()
                    .find(|(place, _)| *place == Some(at))
                    .and_then(|(_, rule)| *rule),
            };
            (at, rule.unwrap_or(number_rule(options)))
        });
        Ok(Self {
            features: features.collect(),
            labels: found_labels(file, wanted, &labels, &names)?,
            names,
            has_header,
        })
    }

    /// Returns the index of a column that is given by name or position; `None` if it does not exist.
    pub(super) fn place(&self, column: &Column) -> Option<usize> {
        match column {
            Column::Name(name) => self.names.iter().position(|one| one == name),
            Column::Position(position) => from_either_end(*position, self.names.len()),
        }
    }

    /// Returns the names by which a model will find its columns, if the table has a header without duplicate names.
    pub(super) fn known_names(&self) -> Option<ColumnNames> {
        let different: BTreeSet<&String> = self.names.iter().collect();
        if !self.has_header || self.labels.is_empty() || different.len() < self.names.len() {
            return None;
        }
        let name = |at: usize| self.names[at].clone();
        Some(ColumnNames {
            features: self.features.iter().map(|&(at, _)| name(at)).collect(),
            labels: self.labels.iter().map(|&at| name(at)).collect(),
        })
    }
}

/// Returns the reading rule of a column for which the options name none: its cells are numbers.
fn number_rule(options: &TableOptions) -> Rule {
    Rule::Number {
        may_miss: may_miss(options),
    }
}

fn may_miss(options: &TableOptions) -> bool {
    options.missing != protocol::job::data::Missing::Error
}

/// Returns the reading rule of a column as a trained model's encoding of it requires.
fn known_rule(encoding: &Encoding, options: &TableOptions) -> Rule {
    match encoding {
        Encoding::Number { fill: Some(_) } => Rule::Number { may_miss: true },
        Encoding::Number { fill: None } => number_rule(options),
        Encoding::OneHot { .. } => Rule::Category,
        Encoding::Hash { inputs } => Rule::Hash(*inputs),
        Encoding::Words { inputs } => Rule::Words(*inputs),
        Encoding::Date { fill, .. } => Rule::Date {
            may_miss: fill.is_some() || may_miss(options),
        },
    }
}

/// Position of a column, if it exists, and its reading rule; without a rule it is dropped.
type ColumnRule = (Option<usize>, Option<Rule>);

/// Returns the table's columns that the options name, with their reading rules.
fn rules(
    file: &Path,
    options: &TableOptions,
    names: &[String],
    find: impl Fn(&Column) -> Option<usize>,
) -> Result<Vec<ColumnRule>, CsvError> {
    let onehot = options
        .onehot
        .iter()
        .map(|column| ("onehot=", column, Some(Rule::Category)));
    let hash = options.hash.iter();
    let hash = hash.map(|(column, inputs)| ("hash=", column, Some(Rule::Hash(*inputs))));
    let words = options.words.iter();
    let words = words.map(|(column, inputs)| ("words=", column, Some(Rule::Words(*inputs))));
    let dates = Rule::Date {
        may_miss: may_miss(options),
    };
    let date = options.date.iter().map(|column| ("date=", column, Some(dates)));
    let drop = options.drop.iter().map(|column| ("drop=", column, None));
    let all = onehot
        .chain(hash)
        .chain(words)
        .chain(date)
        .chain(drop)
        .map(|(option, column, rule)| {
            let place = find(column).ok_or_else(|| CsvError::NoSuchColumn {
                file: file.to_owned(),
                option,
                wanted: column.to_string(),
                columns: list(names),
            })?;
            Ok((Some(place), rule))
        });
    all.collect()
}

/// True if a table's first row is a header: if an option names a column, or if a cell that must hold a number holds a
/// text. If any column may hold texts, it is a header if it holds no number.
fn has_header(
    first: &StringRecord,
    wanted: Wanted<'_>,
    labels: &[Option<usize>],
    find: impl Fn(&Column) -> Option<usize>,
) -> bool {
    let options = wanted.options;
    let hashed = options.hash.iter().chain(&options.words).map(|(column, _)| column);
    let listed = [&options.onehot, &options.date, &options.drop];
    let ruled: Vec<&Column> = listed.into_iter().flatten().chain(hashed).collect();
    let is_name = |column: &Column| matches!(column, Column::Name(_));
    if wanted.labelled && (options.label.iter().any(is_name) || ruled.iter().any(|column| is_name(column))) {
        return true;
    }
    let texts_in_model = wanted.model.is_some_and(|model| {
        let numbers = |encoding: &Encoding| matches!(encoding, Encoding::Number { .. });
        !model.encodings.iter().all(numbers)
    });
    if texts_in_model {
        let Some((names, encodings)) = wanted.model.and_then(|model| model.names.zip(Some(model.encodings))) else {
            return false;
        };
        let has_number = |first: &StringRecord| first.iter().any(|cell| cell.parse::<f32>().is_ok());
        let needs_number = encodings
            .iter()
            .any(|encoding| matches!(encoding, Encoding::Number { .. }));
        return first.iter().any(|cell| names.features.iter().any(|name| name == cell))
            // Names, though of other columns: no row of the model's data consists of texts only.
            || (needs_number && !has_number(first));
    }
    let ruled: Vec<Option<usize>> = ruled.into_iter().map(find).collect();
    let mut cells = first
        .iter()
        .enumerate()
        .filter(|(at, _)| !labels.contains(&Some(*at)) && !ruled.contains(&Some(*at)))
        .map(|(_, cell)| cell);
    // A number that is not finite counts as a number, and is an error in the first sample.
    let is_number = |cell: &str| cell.parse::<f32>().is_ok();
    if options.text.is_some() {
        cells.all(|cell| !is_number(cell))
    } else {
        cells.any(|cell| !is_number(cell) && Cell::read(cell) == Cell::Text)
    }
}

/// Describes the columns that a table lacks, for an error message.
fn missing_text(missing: &[String]) -> String {
    match missing {
        [only] => format!("column '{only}', which the model was trained on"),
        several => format!("columns {}, which the model was trained on", list(several)),
    }
}

/// Returns the positions of the label columns; none if labels are not needed.
fn found_labels(
    file: &Path,
    wanted: Wanted<'_>,
    labels: &[Option<usize>],
    names: &[String],
) -> Result<Vec<usize>, CsvError> {
    if !wanted.labelled {
        return Ok(Vec::new());
    }
    let found = labels.iter().enumerate().map(|(at, place)| {
        place.ok_or_else(|| CsvError::UnknownColumn {
            file: file.to_owned(),
            wanted: wanted.options.label[at].to_string(),
            columns: list(names),
        })
    });
    found.collect()
}

/// Converts a position, which counts from the end if negative, to an index.
fn from_either_end(position: i64, columns: usize) -> Option<usize> {
    let place = if position < 0 {
        position + columns as i64
    } else {
        position
    };
    usize::try_from(place).ok().filter(|&place| place < columns)
}

/// Serialises one name as a text, for compatibility with older files, and several as a list.
mod one_or_more {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        More(Vec<String>),
    }

    pub(super) fn serialize<S: Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
        match names {
            [only] => only.serialize(serializer),
            names => names.serialize(serializer),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
        Ok(match Names::deserialize(deserializer)? {
            Names::One(name) => vec![name],
            Names::More(names) => names,
        })
    }
}
