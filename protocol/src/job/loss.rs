//! The loss that training minimises, and the weight of each class in it.

use std::fmt;
use std::str::FromStr;

use crate::text_options::{serde_as_text, words};

/// Loss function that training minimises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// Loss function: chosen by the data, cross-entropy for classes and the squared error for numbers.
    #[default]
    Auto,
    /// Cross-entropy: the negative logarithm of the probability that the model gives the right class.
    CrossEntropy,
    Mse,
    Mae,
    /// Huber loss: the squared error near zero, and the absolute error beyond one standard deviation.
    Huber,
}

words!(
    Loss, String, unknown_loss,
    "auto" => Self::Auto, "cross-entropy" => Self::CrossEntropy, "mse" => Self::Mse, "mae" => Self::Mae, "huber" => Self::Huber,
);
serde_as_text!(Loss);

fn unknown_loss(text: &str) -> String {
    format!("there is no loss '{text}'; use one of: auto, cross-entropy (for classes), mse, mae or huber (for numbers)")
}

/// Weight of the samples of each class in the loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ClassWeights {
    /// Class weights in the loss: all samples have the same weight.
    #[default]
    Equal,
    /// Class weights in the loss: all classes have the same total weight, so the rarer a class, the higher the weight
    /// of each of its samples.
    Auto,
    /// Class weights in the loss: one for each class, as the job gives them, in the order of the classes.
    Given(Vec<f32>),
}

impl FromStr for ClassWeights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let weight = |text: &str| match text.trim().parse::<f32>() {
            Ok(weight) if weight > 0.0 && weight.is_finite() => Ok(weight),
            _ => Err(format!(
                "'{text}' is not a class weight: write none, auto, or a number above 0 for each class, separated by \
                 commas"
            )),
        };
        match text {
            "none" => Ok(Self::Equal),
            "auto" => Ok(Self::Auto),
            _ => text.split(',').map(weight).collect::<Result<_, _>>().map(Self::Given),
        }
    }
}

impl fmt::Display for ClassWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal => f.write_str("none"),
            Self::Auto => f.write_str("auto"),
            Self::Given(weights) => {
                let weights: Vec<String> = weights.iter().map(ToString::to_string).collect();
                f.write_str(&weights.join(","))
            }
        }
    }
}

serde_as_text!(ClassWeights);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for text in ["auto", "cross-entropy", "mse", "mae", "huber"] {
            assert_eq!(text.parse::<Loss>().unwrap().to_string(), text);
        }
        for text in ["none", "auto", "1,2.5,0.1"] {
            assert_eq!(text.parse::<ClassWeights>().unwrap().to_string(), text);
        }
        assert!("hinge".parse::<Loss>().unwrap_err().contains("use one of: auto"));
        for text in ["1,0", "1,,2", "x", "1,inf", ""] {
            assert!(
                text.parse::<ClassWeights>()
                    .unwrap_err()
                    .contains("is not a class weight"),
                "{text}"
            );
        }
    }
}
