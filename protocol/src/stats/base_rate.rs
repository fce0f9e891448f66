//! The base rate: the accuracy of always guessing the most frequent class, which a model must exceed to have learned
//! anything.

use serde::{Deserialize, Serialize};

/// Standard deviations by which an accuracy must exceed the base rate to be clearly better.
const CLEAR_DEVIATIONS: f64 = 2.0;

/// The accuracy of always guessing the most frequent class of the test samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaseRate {
    /// Share of the most frequent class, from 0 to 1.
    pub rate: f64,
    /// Number of test samples.
    pub samples: u64,
}

/// Result of comparing a model's accuracy with that of always guessing the most frequent class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseRateComparison {
    /// The model is clearly better than always guessing the most frequent class.
    Better,
    /// The model is better than always guessing the most frequent class, but by no more than chance explains.
    Hardly,
    /// The model is not better than always guessing the most frequent class.
    No,
    /// The comparison says nothing, because all test samples are of one class.
    Nothing,
}

impl BaseRate {
    /// Returns the accuracy of always guessing the most frequent class of `samples` samples, which `most_frequent` of
    /// them have. None if no sample has a class.
    #[must_use]
    pub fn of(samples: u64, most_frequent: u64) -> Option<Self> {
        (1..=samples).contains(&most_frequent).then(|| Self {
            rate: most_frequent as f64 / samples as f64,
            samples,
        })
    }

    /// Compares a model's accuracy with that of always guessing the most frequent class of the same samples.
    #[must_use]
    pub fn compare(&self, accuracy: f64) -> BaseRateComparison {
        let deviation = (self.rate * (1.0 - self.rate) / self.samples.max(1) as f64).sqrt();
        let is_better = accuracy > self.rate;
        if self.rate >= 1.0 {
            BaseRateComparison::Nothing
        } else if !is_better {
            BaseRateComparison::No
        } else if accuracy < 1.0 && accuracy <= self.rate + CLEAR_DEVIATIONS * deviation {
            BaseRateComparison::Hardly
        } else {
            BaseRateComparison::Better
        }
    }

    /// Returns a warning for people if a model with this accuracy is not clearly better than guessing.
    #[must_use]
    pub fn warning(&self, accuracy: f64) -> Option<String> {
        let than = format!("better than always guessing the most frequent class ({:.4})", self.rate);
        let advice = "lower the learning rate (--optimiser), train for more --epochs, or check that the labels can \
             be predicted from the inputs";
        match self.compare(accuracy) {
            BaseRateComparison::Better => None,
            BaseRateComparison::Hardly => Some(format!("the model is hardly {than}: {advice}")),
            BaseRateComparison::No => Some(format!("the model is no {than}: {advice}")),
            BaseRateComparison::Nothing => Some(
                "all test samples are of one class, so their accuracy says nothing about the model: choose test \
                 samples of all classes"
                    .into(),
            ),
        }
    }
}

/// Returns the number of labels that equal the most frequent one.
#[must_use]
pub fn most_frequent(labels: &[u32]) -> u64 {
    let mut counts = std::collections::BTreeMap::<u32, u64>::new();
    for &label in labels {
        *counts.entry(label).or_default() += 1;
    }
    counts.into_values().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_class_sets_the_rate() {
        assert_eq!(most_frequent(&[3, 1, 3, 7]), 2);
        assert_eq!(most_frequent(&[]), 0);
        assert_eq!(BaseRate::of(4, 2).map(|base| base.rate), Some(0.5));
        // Data without classes has no base rate, and impossible counts have none either.
        assert_eq!(
            (BaseRate::of(0, 0), BaseRate::of(4, 0), BaseRate::of(4, 5)),
            (None, None, None)
        );
    }

    #[test]
    fn what_is_not_clearly_better_is_told() {
        let compared = |samples, most, accuracy| BaseRate::of(samples, most).unwrap().compare(accuracy);
        assert_eq!(compared(10_000, 1_135, 0.1135), BaseRateComparison::No);
        assert_eq!(compared(10_000, 1_135, 0.098), BaseRateComparison::No);
        assert_eq!(compared(10_000, 1_135, 0.117), BaseRateComparison::Hardly);
        assert_eq!(compared(10_000, 1_135, 0.2), BaseRateComparison::Better);
        assert_eq!(compared(10_000, 9_800, 0.984), BaseRateComparison::Better);
        assert_eq!(compared(10_000, 9_800, 0.981), BaseRateComparison::Hardly);
        assert_eq!(
            compared(4, 2, 1.0),
            BaseRateComparison::Better,
            "a perfect accuracy is always better"
        );
        assert_eq!(compared(4, 4, 1.0), BaseRateComparison::Nothing);
        assert_eq!(compared(4, 2, f64::NAN), BaseRateComparison::No);
        let warning = BaseRate::of(10_000, 1_135).unwrap().warning(0.1135).unwrap();
        assert!(
            warning.contains("no better than always guessing the most frequent class (0.1135): lower"),
            "{warning}"
        );
        assert_eq!(BaseRate::of(10_000, 1_135).unwrap().warning(0.98), None);
    }
}
