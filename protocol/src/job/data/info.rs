//! The properties of a dataset, and of the code that reads it, that all nodes of a run must agree on.

use serde::{Deserialize, Serialize};

use crate::job::model::Shape;
use crate::job::target::TargetInfo;

/// Properties of a dataset that all nodes of a run must agree on, because they train on copies of the same data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataInfo {
    /// SHA-256 of the dataset's contents.
    pub hash: [u8; 32],
    pub input: Shape,
    /// Target that a model predicts for each sample: classes or numbers.
    pub target: TargetInfo,
    /// Number of training samples of the dataset, without the validation samples.
    pub train: u64,
    pub test: u64,
    /// Number of training samples set aside for the run's own decisions (validation).
    pub validation: u64,
    /// Number of test samples of the most frequent class; 0 if samples have no classes.
    pub most_frequent: u64,
    /// SHA-256 of the code of the run's module (a network that is Python code) and of all that it imports from its
    /// folder; `None` for a model of layers.
    pub code: Option<[u8; 32]>,
}

#[cfg(test)]
impl DataInfo {
    /// Returns a small dataset's properties, for tests.
    pub(crate) fn example() -> Self {
        Self {
            hash: [0; 32],
            input: Shape::Flat(3),
            target: TargetInfo::Classes(2),
            train: 10,
            test: 2,
            validation: 0,
            most_frequent: 1,
            code: None,
        }
    }
}
