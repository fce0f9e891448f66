//! The confusion matrix of a model that predicts classes, and the recall, precision and F1 that follow from it.

use std::borrow::Cow;
use std::fmt::Write as _;

use protocol::stats::base_rate::{BaseRate, BaseRateComparison};
use serde::Serialize;

use crate::output::{printable, quantity};

/// Number of classes up to which the whole confusion matrix is printed, because it fits a terminal.
const MATRIX_CLASSES_MAX: usize = 12;
/// Minimum number of letters to which the name of a class is cut in the printed confusion matrix.
const NAME_LETTERS: usize = 7;

/// Confusion matrix: the number of samples of each true class that the model took for each class, and scores from it.
#[derive(Debug, Serialize)]
pub(crate) struct Confusion {
    classes: Vec<String>,
    /// Confusion matrix: sample counts, indexed by the true class, then by the predicted class.
    matrix: Vec<Vec<u64>>,
    per_class: Vec<OfClass>,
    /// Accuracy of always predicting the most frequent class.
    baseline: f64,
    /// Mean recall of the classes that have samples.
    pub(crate) balanced_accuracy: f64,
    /// Mean F1 of the classes that have samples or were predicted.
    pub(crate) macro_f1: f64,
}

/// Recall, precision and F1 of one class in an evaluation.
#[derive(Debug, PartialEq, Serialize)]
struct OfClass {
    class: String,
    samples: u64,
    /// Share of the class's samples that were recognised; none if the class has no samples.
    recall: Option<f64>,
    /// Share of the class's own samples among those predicted as the class; none if the class was never predicted.
    precision: Option<f64>,
    /// Harmonic mean of recall and precision, 0 if no sample was recognised; none if the class has no samples and was
    /// never predicted.
    f1: Option<f64>,
}

impl Confusion {
    /// Builds the confusion matrix from pairs of a true and a predicted class.
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
                f1: share(2 * matrix[class][class], samples + taken),
            }
        });
        let per_class: Vec<OfClass> = per_class.collect();
        let all: u64 = per_class.iter().map(|one| one.samples).sum();
        let most = per_class.iter().map(|one| one.samples).max().unwrap_or(0);
        Self {
            balanced_accuracy: mean(per_class.iter().filter_map(|one| one.recall)),
            macro_f1: mean(per_class.iter().filter_map(|one| one.f1)),
            classes: classes.to_vec(),
            baseline: share(most, all).unwrap_or_default(),
            per_class,
            matrix,
        }
    }

    /// Returns a warning if the balanced accuracy is not clearly better than guessing among the classes. Meant for
    /// models trained with class weights, which give up accuracy for rare classes.
    pub(crate) fn warning(&self) -> Option<String> {
        let with_samples = self.per_class.iter().filter(|one| one.samples > 0);
        let guessing = BaseRate {
            rate: 1.0 / with_samples.clone().count().max(1) as f64,
            samples: with_samples.map(|one| one.samples).sum(),
        };
        let compared = match guessing.compare(self.balanced_accuracy) {
            BaseRateComparison::Better => return None,
            BaseRateComparison::Hardly => "hardly",
            BaseRateComparison::No => "no",
            BaseRateComparison::Nothing => return guessing.warning(self.balanced_accuracy),
        };
        Some(format!(
            "the model is {compared} better than guessing: its balanced accuracy is {}, that of guessing is {}; \
             train for more --epochs, or check that the labels can be predicted from the inputs",
            quantity::accuracy(self.balanced_accuracy),
            quantity::accuracy(guessing.rate)
        ))
    }

    /// Formats the scores of each class and, if there are few classes, the confusion matrix, within `room` columns.
    pub(crate) fn text(&self, room: usize) -> String {
        let names: Vec<_> = self.classes.iter().map(|name| printable::line(name)).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let width = width.max("class".len());
        let mut text = format!(
            "{:width$}  {:>8}  {:>8}  {:>9}  {:>7}\n",
            "class", "samples", "recall", "precision", "F1"
        );
        let percent = |share: Option<f64>| share.map_or("–".into(), |share| format!("{:.2} %", 100.0 * share));
        for (name, one) in names.iter().zip(&self.per_class) {
            let (recall, precision) = (percent(one.recall), percent(one.precision));
            let f1 = one.f1.map_or("–".into(), |f1| format!("{f1:.4}"));
            let _ = writeln!(
                text,
                "{name:width$}  {:>8}  {recall:>8}  {precision:>9}  {f1:>7}",
                one.samples
            );
        }
        if self.classes.len() <= MATRIX_CLASSES_MAX {
            text.push_str(&self.matrix_text(&names, width, room));
        }
        text
    }

    fn matrix_text(&self, names: &[Cow<'_, str>], width: usize, room: usize) -> String {
        // Names are cut only as far as the available columns require.
        let each = room.saturating_sub(width) / self.classes.len().max(1);
        let letters = each.saturating_sub(2).clamp(NAME_LETTERS, width.max(NAME_LETTERS));
        let cell = |text: &str| {
            let shown: String = text.chars().take(letters).collect();
            format!("  {shown:>letters$}")
        };
        let heads: String = names.iter().map(|name| cell(name)).collect::<Vec<_>>().concat();
        let mut text = format!(
            "\nrows: true classes, columns: predicted classes\n{:width$}{heads}\n",
            ""
        );
        for (name, row) in names.iter().zip(&self.matrix) {
            let row: Vec<String> = row.iter().map(|count| cell(&count.to_string())).collect();
            let _ = writeln!(text, "{name:width$}{}", row.concat());
        }
        text
    }
}

fn mean(figures: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = figures.fold((0.0, 0u64), |(sum, count), figure| (sum + figure, count + 1));
    sum / count.max(1) as f64
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
        assert_eq!(confusion.balanced_accuracy, f64::midpoint(two_thirds, 1.0));
        // The same values as scikit-learn's balanced_accuracy_score and f1_score(average="macro").
        assert!((confusion.macro_f1 - f64::midpoint(0.8, two_thirds)).abs() < 1e-12);
        let text = confusion.text(80);
        assert!(text.contains("lily          3   66.67 %   100.00 %   0.8000"), "{text}");
        assert!(!text.contains("most frequent"), "{text}");
    }

    #[test]
    fn names_are_cut_only_where_there_is_no_room() {
        let classes = ["happy customer", "has left"].map(String::from);
        let confusion = Confusion::of(&classes, [(0, 0), (1, 1)].into_iter());
        assert!(
            confusion.text(80).contains("  happy customer        has left\n"),
            "{}",
            confusion.text(80)
        );
        let narrow = confusion.text(32);
        assert!(narrow.contains("  happy c  has lef\n"), "{narrow}");
    }

    #[test]
    fn a_model_for_all_classes_alike_is_compared_with_guessing_among_them() {
        let classes = ["rare", "usual"].map(String::from);
        let of = |rare_right: usize, usual_right: usize| {
            let pairs = (0..50).map(|at| (0, u32::from(at >= rare_right)));
            let pairs = pairs.chain((0..950).map(|at| (1, u32::from(at < usual_right))));
            Confusion::of(&classes, pairs)
        };
        // Less accurate than always guessing 'usual', and yet the model has learned.
        assert_eq!(of(45, 800).warning(), None);
        let warning = of(0, 950).warning().unwrap();
        assert!(
            warning.contains("no better than guessing: its balanced accuracy is 50.00 %, that of guessing is 50.00 %"),
            "{warning}"
        );
    }
}
