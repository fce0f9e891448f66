//! From label texts to class numbers.

use std::path::Path;

use super::CsvError;
use super::table::Table;
use crate::dataset::error::list;

/// The classes of a file in order, and the class of each row.
///
/// The order depends on the set of labels alone, not on the order of rows: numbers by value when all labels are
/// numbers (so that 10 follows 9), else by text.
pub(super) fn from_labels(table: &Table) -> (Vec<String>, Vec<u32>) {
    let texts = &table.texts;
    let numbers: Option<Vec<f64>> = texts.iter().map(|label| label.text.parse().ok()).collect();
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by(|&a, &b| {
        let by_text = || texts[a].text.cmp(&texts[b].text);
        match &numbers {
            Some(numbers) => numbers[a].total_cmp(&numbers[b]).then_with(by_text),
            None => by_text(),
        }
    });
    let mut class_of = vec![0; texts.len()];
    for (class, &text) in order.iter().enumerate() {
        class_of[text] = class as u32;
    }
    let names = order.iter().map(|&text| texts[text].text.clone()).collect();
    (names, number(table, &class_of))
}

/// The class of each row among those that a model knows.
pub(super) fn among(table: &Table, classes: &[String], file: &Path) -> Result<Vec<u32>, CsvError> {
    let class_of = table
        .texts
        .iter()
        .map(|label| match classes.iter().position(|class| *class == label.text) {
            Some(class) => Ok(class as u32),
            None => Err(CsvError::UnknownClass {
                file: file.to_owned(),
                line: label.line,
                label: label.text.clone(),
                classes: list(classes),
            }),
        });
    let class_of = class_of.collect::<Result<Vec<_>, _>>()?;
    Ok(number(table, &class_of))
}

fn number(table: &Table, class_of: &[u32]) -> Vec<u32> {
    table.labels.iter().map(|&text| class_of[text]).collect()
}
