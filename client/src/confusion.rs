//! Which classes a model takes for which: what the accuracy is made of.

use std::fmt::Write as _;

use serde::Serialize;

/// Classes up to which the whole matrix fits a terminal.
const MATRIX_CLASSES_MAX: usize = 12;
/// Letters of a class's name in the matrix.
const NAME_LETTERS: usize = 7;

/// How often samples of each class were taken for each class.
#[derive(Debug, Serialize)]
pub(crate) struct Confusion {
    classes: Vec<String>,
    /// By the true class, then by the predicted one.
    matrix: Vec<Vec<u64>>,
    per_class: Vec<OfClass>,
    /// What always naming the most frequent class would reach.
    baseline: f64,
}

/// How well one class is told from the others.
#[derive(Debug, PartialEq, Serialize)]
struct OfClass {
    class: String,
    samples: u64,
    /// The share of its samples that were taken for it; none where it has no samples.
    recall: Option<f64>,
    /// The share of it in what was taken for it; none where nothing was.
    precision: Option<f64>,
}

impl Confusion {
    /// Counts pairs of a true and a predicted class.
    pub(crate) fn of(classes: &[String], pairs: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut matrix = vec![vec![0u64; classes.len()]; classes.len()];
        for (truth, predicted) in pairs {
            matrix[truth as usize][predicted as usize] += 1;
        }
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let per_class = classes.iter().enumerate().map(|(class, name)| {
            let samples = matrix[class].iter().sum();
            let taken = matrix.iter().map(|row| row[class]).sum();
            OfClass {
                class: name.clone(),
                samples,
                recall: share(matrix[class][class], samples),
                precision: share(matrix[class][class], taken),
            }
        });
        let per_class: Vec<OfClass> = per_class.collect();
        let all: u64 = per_class.iter().map(|one| one.samples).sum();
        let most = per_class.iter().map(|one| one.samples).max().unwrap_or(0);
        Self {
            classes: classes.to_vec(),
            baseline: share(most, all).unwrap_or_default(),
            per_class,
            matrix,
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let width = self.classes.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let width = width.max("class".len());
        let mut text = format!(
            "{:width$}  {:>8}  {:>7}  {:>9}\n",
            "class", "samples", "recall", "precision"
        );
        let percent = |share: Option<f64>| share.map_or("–".into(), |share| format!("{:.2} %", 100.0 * share));
        for one in &self.per_class {
            let (recall, precision) = (percent(one.recall), percent(one.precision));
            let _ = writeln!(
                text,
                "{:width$}  {:>8}  {recall:>8}  {precision:>9}",
                one.class, one.samples
            );
        }
        if self.classes.len() <= MATRIX_CLASSES_MAX {
            text.push_str(&self.matrix_text(width));
        }
        let _ = writeln!(
            text,
            "always naming the most frequent class would reach {:.2} %",
            100.0 * self.baseline
        );
        text
    }

    fn matrix_text(&self, width: usize) -> String {
        let cell = |text: &str| {
            let letters: String = text.chars().take(NAME_LETTERS).collect();
            format!("  {letters:>NAME_LETTERS$}")
        };
        let names: String = self.classes.iter().map(|name| cell(name)).collect::<Vec<_>>().concat();
        let mut text = format!(
            "\nrows are what samples are, columns what they are taken for\n{:width$}{names}\n",
            ""
        );
        for (name, row) in self.classes.iter().zip(&self.matrix) {
            let row: Vec<String> = row.iter().map(|count| cell(&count.to_string())).collect();
            let _ = writeln!(text, "{name:width$}{}", row.concat());
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_rows_and_of_columns() {
        let classes = ["lily", "rose", "none"].map(String::from);
        let pairs = [(0, 0), (0, 0), (0, 1), (1, 1)];
        let confusion = Confusion::of(&classes, pairs.into_iter());
        assert_eq!(confusion.matrix, [[2, 1, 0], [0, 1, 0], [0, 0, 0]]);
        let shares: Vec<_> = confusion
            .per_class
            .iter()
            .map(|one| (one.recall, one.precision))
            .collect();
        let two_thirds = 2.0 / 3.0;
        assert_eq!(
            shares,
            [(Some(two_thirds), Some(1.0)), (Some(1.0), Some(0.5)), (None, None)]
        );
        assert_eq!(confusion.baseline, 0.75);
        let text = confusion.text();
        assert!(text.contains("lily          3   66.67 %   100.00 %"), "{text}");
        assert!(text.contains("most frequent class would reach 75.00 %"), "{text}");
    }
}
