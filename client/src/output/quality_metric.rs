//! The one figure that says how good a model is: accuracy for a classifier, R² for a model that predicts numbers, and
//! the loss for any other model.

use super::quantity;

/// Kind of figure that measures a model's quality. Records carry accuracy and R² in the same field; a mean absolute
/// error beside it means R². A model without an accuracy is measured by its loss on evaluation samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QualityMetric {
    Accuracy,
    R2,
    Loss,
}

impl QualityMetric {
    /// Returns the kind of a model's quality figure, given the mean absolute error beside it: R² if there is one,
    /// otherwise accuracy.
    pub(crate) fn by(mae: Option<f64>) -> Self {
        if mae.is_some() { Self::R2 } else { Self::Accuracy }
    }

    /// Returns the quality figure of measured scores, and its value. Before the first evaluation there is neither an
    /// accuracy nor a `loss`: then the kind is a guess (accuracy or, with a mean absolute error, R²).
    pub(crate) fn of(accuracy: Option<f64>, mae: Option<f64>, loss: Option<f64>) -> (Self, Option<f64>) {
        match (accuracy, loss) {
            (None, Some(loss)) => (Self::Loss, Some(loss)),
            (accuracy, _) => (Self::by(mae), accuracy),
        }
    }

    /// Returns the better of two values of the figure. Any number is better than NaN.
    pub(crate) fn better(self, one: f64, other: f64) -> f64 {
        match self {
            Self::Accuracy | Self::R2 => one.max(other),
            Self::Loss => one.min(other),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::R2 => "R²",
            Self::Loss => "eval loss",
        }
    }

    pub(crate) fn text(self, figure: f64) -> String {
        match self {
            Self::Accuracy => quantity::accuracy(figure),
            Self::R2 | Self::Loss => format!("{figure:.4}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_called_accurate() {
        let said = |mae, figure| {
            format!(
                "{} {}",
                QualityMetric::by(mae).name(),
                QualityMetric::by(mae).text(figure)
            )
        };
        assert_eq!(said(None, 0.9865), "accuracy 98.65 %");
        assert_eq!(said(Some(3.0), -0.25), "R² -0.2500");
    }

    #[test]
    fn a_model_without_an_accuracy_is_measured_by_its_loss() {
        use QualityMetric::{Accuracy, Loss, R2};
        let of = QualityMetric::of;
        assert_eq!(of(None, None, Some(2.5)), (Loss, Some(2.5)));
        assert_eq!(of(None, None, None), (Accuracy, None), "nothing is measured yet");
        assert_eq!(of(Some(0.9), None, Some(2.5)), (Accuracy, Some(0.9)));
        assert_eq!(of(Some(0.9), Some(3.0), Some(2.5)), (R2, Some(0.9)));
        assert_eq!((Accuracy.better(0.5, 0.75), Loss.better(0.5, 0.75)), (0.75, 0.5));
        assert_eq!((Loss.better(f64::NAN, 0.5), Loss.better(0.5, f64::NAN)), (0.5, 0.5));
    }
}
