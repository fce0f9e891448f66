//! What nodes of a run must agree on about their data.

use serde::{Deserialize, Serialize};

use crate::job::model::Shape;
use crate::job::target::TargetInfo;

/// The properties of a dataset that all nodes of a run must agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataInfo {
    /// SHA-256 of its contents.
    pub hash: [u8; 32],
    /// The shape of a sample.
    pub input: Shape,
    /// What is to be predicted.
    pub target: TargetInfo,
    /// Samples to learn from.
    pub train: u64,
    /// Samples kept for measuring.
    pub test: u64,
    /// Samples set aside from the training part for the run's own decisions.
    pub validation: u64,
    /// How many of the test samples are of the most frequent class; 0 where samples have no classes.
    pub most_frequent: u64,
}

#[cfg(test)]
impl DataInfo {
    /// Returns a small one.
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
