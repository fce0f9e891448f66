//! What is to be predicted, as far as nodes have to agree on it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a dataset's samples are to be told apart by, or to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetInfo {
    /// Each sample is of one of so many classes.
    Classes(usize),
    /// Each sample has so many numbers.
    Numbers(usize),
}

impl TargetInfo {
    /// The outputs that a model's last layer needs: one for each class, or one for each number.
    #[must_use]
    pub fn outputs(self) -> usize {
        match self {
            Self::Classes(count) | Self::Numbers(count) => count,
        }
    }
}

impl fmt::Display for TargetInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Classes(count) => write!(f, "{count} classes"),
            Self::Numbers(1) => f.write_str("a number to predict"),
            Self::Numbers(count) => write!(f, "{count} numbers to predict"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_classes_or_numbers() {
        for (target, outputs, text) in [
            (TargetInfo::Classes(10), 10, "10 classes"),
            (TargetInfo::Numbers(1), 1, "a number to predict"),
            (TargetInfo::Numbers(3), 3, "3 numbers to predict"),
        ] {
            assert_eq!((target.outputs(), target.to_string().as_str()), (outputs, text));
        }
    }
}
