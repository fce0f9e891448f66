//! The one figure that says how good a model is: accuracy for a classifier, R² for a model that predicts numbers.

use super::quantity;

/// Kind of figure that measures a model's quality. Records carry accuracy and R² in the same field; a mean absolute
/// error beside it means R².
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QualityMetric {
    Accuracy,
    R2,
}

impl QualityMetric {
    /// Returns the kind of a model's quality figure, given the mean absolute error beside it: R² if there is one,
    /// otherwise accuracy.
    pub(crate) fn by(mae: Option<f64>) -> Self {
        if mae.is_some() { Self::R2 } else { Self::Accuracy }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::R2 => "R²",
        }
    }

    pub(crate) fn text(self, figure: f64) -> String {
        match self {
            Self::Accuracy => quantity::accuracy(figure),
            Self::R2 => format!("{figure:.4}"),
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
}
