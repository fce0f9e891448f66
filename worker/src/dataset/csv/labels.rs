//! Reads labels, which may be texts (classes) or numbers.
//!
//! A label column is known to hold classes or numbers only after its last row, so both readings are kept until then.

use std::collections::HashMap;
use std::path::Path;

use protocol::job::data::TargetKind;

use super::CsvError;
use super::cell::Cell;
use crate::dataset::error::list;

/// Up to this many different numbers in a label column always count as classes.
const CLASSES_ANYWAY: usize = 20;
/// If a label column's different numbers are more than this share of the rows, they are not classes: nearly every row
/// would be its own class.
const CLASSES_PER_ROW: f64 = 0.05;
/// More different numbers in a label column than this are never taken for classes, unless the user says so.
const CLASSES_MAX: usize = 1 << 16;

/// Bytes of memory for a label besides its text: as a number, as the index of a text and as a class.
const LABEL_BYTES: u64 = 24;
/// Bytes of memory for a different text besides its letters: two strings, the name of its column, and indices.
const TEXT_BYTES: u64 = 256;

/// The labels of a table, row by row.
pub(in crate::dataset) struct Labels {
    kind: Option<TargetKind>,
    /// All label cells as numbers; `None` once a cell is not a number.
    numbers: Option<Vec<f32>>,
    /// Texts of the only label column, from which classes may be made; `None` if the labels must be numbers.
    texts: Option<Texts>,
    /// The first label that is not a number, if there is one.
    text_met: Option<Text>,
    /// True if a label is a number with a fraction.
    fractions: bool,
    /// Estimated bytes of memory for all labels.
    bytes: u64,
}

/// The texts of a column, each stored once.
#[derive(Default)]
pub(in crate::dataset) struct Texts {
    /// For each row, the index of its text in `different`.
    pub(super) rows: Vec<u32>,
    /// The column's different texts, in the order of first occurrence.
    pub(super) different: Vec<Text>,
    places: HashMap<String, u32>,
    /// Estimated bytes of memory for the column's different texts.
    pub(super) bytes: u64,
}

/// A text as written in a cell of the table.
#[derive(Clone)]
pub(in crate::dataset) struct Text {
    pub(super) cell: String,
    /// Name of the column that the text is in.
    pub(super) column: String,
    /// Line of the text's first occurrence.
    pub(super) line: u64,
}

/// The labels of a table, after deciding that they are classes or numbers.
pub(in crate::dataset) enum LabelColumn {
    Classes(Texts),
    /// The labels are numbers: a row of them for each sample.
    Numbers(Vec<f32>),
}

impl Labels {
    /// Makes empty labels for this many columns. `kind` says if they are classes or numbers, if that is known; several
    /// columns are always numbers.
    pub(in crate::dataset) fn new(columns: usize, kind: Option<TargetKind>) -> Self {
        let kind = if columns == 1 { kind } else { Some(TargetKind::Number) };
        Self {
            kind,
            numbers: (kind != Some(TargetKind::Class)).then(Vec::new),
            texts: (kind != Some(TargetKind::Number)).then(Texts::default),
            text_met: None,
            fractions: false,
            bytes: 0,
        }
    }

    /// Estimated bytes of memory for all labels.
    pub(in crate::dataset) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the cell of a row's next label column.
    pub(in crate::dataset) fn push(
        &mut self,
        file: &Path,
        column: &str,
        cell: &str,
        line: u64,
    ) -> Result<(), CsvError> {
        let here = || Text {
            cell: cell.to_owned(),
            column: column.to_owned(),
            line,
        };
        if let Some(numbers) = &mut self.numbers {
            if let Some(number) = cell.parse().ok().filter(|number: &f32| number.is_finite()) {
                self.fractions |= number.fract() != 0.0;
                numbers.push(number);
            } else {
                self.numbers = None;
                self.text_met = Some(here());
            }
        }
        self.bytes += LABEL_BYTES;
        if let Some(texts) = &mut self.texts {
            let before = texts.bytes;
            texts.push(cell, here);
            self.bytes += texts.bytes - before;
            // There are never that many classes, and their texts would fill the memory.
            if self.kind.is_none() && self.numbers.is_some() && texts.different.len() > CLASSES_MAX {
                self.texts = None;
            }
        }
        match (&self.text_met, &self.texts) {
            (Some(met), None) => Err(CsvError::LabelNotANumber {
                file: file.to_owned(),
                line: met.line,
                column: met.column.clone(),
                cell: met.cell.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Decides, after the last row, if the labels are classes or numbers.
    pub(in crate::dataset) fn decide(self, file: &Path) -> Result<LabelColumn, CsvError> {
        match (self.numbers, self.texts) {
            (Some(numbers), Some(texts)) if is_number(texts.different.len(), numbers.len(), self.fractions) => {
                Ok(LabelColumn::Numbers(numbers))
            }
            (_, Some(texts)) => match texts.gap_among_numbers().filter(|_| self.kind.is_none()) {
                Some(gap) => Err(CsvError::GapAmongNumbers {
                    file: file.to_owned(),
                    line: gap.line,
                    column: gap.column.clone(),
                    cell: gap.cell.clone(),
                }),
                None => Ok(LabelColumn::Classes(texts)),
            },
            (numbers, None) => Ok(LabelColumn::Numbers(numbers.unwrap_or_default())),
        }
    }
}

/// True if labels that are numbers are to be predicted as numbers rather than as classes, when this many different ones
/// occur in this many rows.
fn is_number(different: usize, rows: usize, fractions: bool) -> bool {
    different > CLASSES_ANYWAY && (fractions || different as f64 > CLASSES_PER_ROW * rows as f64)
}

impl Texts {
    fn push(&mut self, cell: &str, here: impl FnOnce() -> Text) {
        let place = self.place(cell, here);
        self.rows.push(place);
    }

    /// Returns the label column's first cell that marks a missing value, if all other labels are numbers and too many
    /// to be classes.
    fn gap_among_numbers(&self) -> Option<&Text> {
        let (mut gap, mut numbers, mut fractions) = (None, 0, false);
        for text in &self.different {
            match Cell::read(&text.cell) {
                Cell::Number(number) => {
                    numbers += 1;
                    fractions |= number.fract() != 0.0;
                }
                Cell::Missing => gap = gap.or(Some(text)),
                Cell::Text => return None,
            }
        }
        gap.filter(|_| is_number(numbers, self.rows.len(), fractions))
    }

    /// Returns the index of a text among the column's different texts. If the text is new, adds it, with the place of
    /// its first occurrence from `here`.
    pub(super) fn place(&mut self, cell: &str, here: impl FnOnce() -> Text) -> u32 {
        if let Some(&place) = self.places.get(cell) {
            return place;
        }
        let place = self.different.len() as u32;
        self.places.insert(cell.to_owned(), place);
        let text = here();
        self.bytes += (2 * cell.len() + text.column.len()) as u64 + TEXT_BYTES;
        self.different.push(text);
        place
    }

    /// Returns the names of the classes in order, and the class of each row.
    ///
    /// The order depends only on the set of labels, not on the order of rows: by value if all labels are numbers (so
    /// that 10 follows 9), else by text.
    pub(super) fn classes(&self) -> (Vec<String>, Vec<u32>) {
        let texts = &self.different;
        let numbers: Option<Vec<f64>> = texts.iter().map(|label| label.cell.parse().ok()).collect();
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by(|&a, &b| {
            let by_text = || texts[a].cell.cmp(&texts[b].cell);
            match &numbers {
                Some(numbers) => numbers[a].total_cmp(&numbers[b]).then_with(by_text),
                None => by_text(),
            }
        });
        let mut class_of = vec![0; texts.len()];
        for (class, &text) in order.iter().enumerate() {
            class_of[text] = class as u32;
        }
        let names = order.iter().map(|&text| texts[text].cell.clone()).collect();
        (names, self.numbered(&class_of))
    }

    /// Returns the class of each row among those that a model knows; a label outside of them is an error.
    pub(super) fn among(&self, classes: &[String], file: &Path) -> Result<Vec<u32>, CsvError> {
        let places: HashMap<&str, u32> = classes.iter().map(String::as_str).zip(0..).collect();
        let class_of = self
            .different
            .iter()
            .map(|label| match places.get(label.cell.as_str()) {
                Some(&class) => Ok(class),
                None => Err(CsvError::UnknownClass {
                    file: file.to_owned(),
                    line: label.line,
                    label: label.cell.clone(),
                    classes: list(classes),
                }),
            });
        Ok(self.numbered(&class_of.collect::<Result<Vec<_>, _>>()?))
    }

    fn numbered(&self, class_of: &[u32]) -> Vec<u32> {
        self.rows.iter().map(|&text| class_of[text as usize]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_different_numbers_are_a_number() {
        for (different, rows, fractions, number) in [
            (3, 3, true, false),
            (20, 20, true, false),
            (21, 10_000, true, true),
            (21, 10_000, false, false),
            (62, 100_000, false, false),
            (214, 442, false, true),
            (501, 10_000, false, true),
            (500, 10_000, false, false),
        ] {
            assert_eq!(is_number(different, rows, fractions), number, "{different} of {rows}");
        }
    }

    fn labels(kind: Option<TargetKind>, cells: impl IntoIterator<Item = String>) -> Result<LabelColumn, CsvError> {
        let mut labels = Labels::new(1, kind);
        for (line, cell) in (1..).zip(cells) {
            labels.push(Path::new("f"), "price", &cell, line)?;
        }
        labels.decide(Path::new("f"))
    }

    #[test]
    fn a_text_among_numbers_makes_classes() {
        let with = |last: &str| (0..100).map(|n| n.to_string()).chain([last.to_owned()]);
        assert!(matches!(labels(None, with("other")), Ok(LabelColumn::Classes(texts)) if texts.different.len() == 101));
        // A missing value is a gap, unless the user says that the labels are classes.
        let class = Some(TargetKind::Class);
        assert!(matches!(labels(class, with("NA")), Ok(LabelColumn::Classes(texts)) if texts.different.len() == 101));
        for (kind, last) in [(Some(TargetKind::Number), "other"), (None, "NA"), (None, "none")] {
            let Err(error) = labels(kind, with(last)) else {
                panic!("the label '{last}' must be refused");
            };
            assert!(error.to_string().contains("line 101"), "{error}");
        }
        let few = ["1", "2", "NA"].map(str::to_owned);
        assert!(matches!(labels(None, few), Ok(LabelColumn::Classes(texts)) if texts.different.len() == 3));
        let numbers = || (0..100).map(|n| n.to_string());
        assert!(matches!(labels(None, numbers()), Ok(LabelColumn::Numbers(all)) if all.len() == 100));
        let forced = labels(Some(TargetKind::Class), numbers());
        assert!(matches!(forced, Ok(LabelColumn::Classes(texts)) if texts.different.len() == 100));
    }

    #[test]
    fn texts_of_more_numbers_than_anybody_has_classes_are_forgotten() {
        let numbers = || (0..70_000).map(|n| n.to_string());
        assert!(matches!(labels(None, numbers()), Ok(LabelColumn::Numbers(all)) if all.len() == 70_000));
        let Err(error) = labels(None, numbers().chain(["none".to_owned()])) else {
            panic!("the label 'none' must be refused");
        };
        assert!(error.to_string().contains("holds 'none'"), "{error}");
    }
}
