//! The target that a model predicts, as far as nodes have to agree on it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Target that a model predicts for each sample: a class or numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetInfo {
    /// Target of a model: for each sample, one of this number of classes.
    Classes(usize),
    /// Target of a model: for each sample, this number of numbers.
    Numbers(usize),
    /// Target that only the code of the model's module knows; that code computes the loss.
    Module,
}

impl TargetInfo {
    /// Returns the number of outputs of the model's last layer: one for each class, or one for each number; 0 if only
    /// the module's code knows it.
    #[must_use]
    pub fn outputs(self) -> usize {
        match self {
            Self::Classes(count) | Self::Numbers(count) => count,
            Self::Module => 0,
        }
    }
}

impl fmt::Display for TargetInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Classes(count) => write!(f, "{count} classes"),
            Self::Numbers(1) => f.write_str("a number to predict"),
            Self::Numbers(count) => write!(f, "{count} numbers to predict"),
            Self::Module => f.write_str("a loss of its module"),
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
            (TargetInfo::Module, 0, "a loss of its module"),
        ] {
            assert_eq!((target.outputs(), target.to_string().as_str()), (outputs, text));
        }
    }
}
