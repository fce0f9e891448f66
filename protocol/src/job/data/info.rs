//! The properties of a dataset that all nodes of a run must agree on.

use serde::{Deserialize, Serialize};

use crate::job::model::Shape;
use crate::job::target::TargetInfo;

/// Properties of a dataset that all nodes of a run must agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataInfo {
    /// SHA-256 of the dataset's contents.
    pub hash: [u8; 32],
    /// Shape of one sample.
    pub input: Shape,
    /// Target that a model predicts: classes or numbers.
    pub target: TargetInfo,
    /// Number of training samples, without the validation samples.
    pub train: u64,
    /// Number of test samples.
    pub test: u64,
    /// Number of samples taken from the training part for the run's own decisions.
    pub validation: u64,
    /// Number of test samples of the most frequent class; 0 if samples have no classes.
    pub most_frequent: u64,
}

#[cfg(test)]
impl DataInfo {
    /// Returns a small dataset's properties.
    pub(crate) fn example() -> Self {
        Self {
            hash: [0; 32],
            input: Shape::Flat(3),
            target: TargetInfo::Classes(2),
            train: 10,
            test: 2,
            validation: 0,
            most_frequent: 1,
        }
    }
}
