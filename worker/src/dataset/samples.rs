//! Sets of samples, from which minibatches are gathered.

use std::fmt;
use std::sync::Arc;

use super::scratch::ScratchFloats;
use super::{Answers, DatasetError, Scaling, parts};

/// A set of samples: the features and the expected output of each.
#[derive(Clone, PartialEq)]
pub struct Samples {
    features: usize,
    values: Values,
    answers: Answers,
    /// Position of each sample in the data of a module (the user's code), which alone can read it; `None` for samples
    /// that Tau reads.
    positions: Option<Vec<u32>>,
}

/// Features of all samples, one sample after the other.
#[derive(Clone, PartialEq)]
pub(crate) enum Values {
    /// Features are pixels as bytes, which take a quarter of the memory; gathering scales them by [`Scaling::Unit`].
    Bytes(Vec<u8>),
    /// Features as numbers that are scaled already.
    Floats(Vec<f32>),
    /// Features as scaled numbers in a scratch file, because they do not fit into memory.
    Scratch(ScratchFloats),
}

impl Values {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Floats(floats) => floats.len(),
            Self::Scratch(floats) => floats.len(),
        }
    }
}

impl Samples {
    /// Joins features and answers; the caller has checked that their counts agree.
    pub(super) fn new(features: usize, values: Values, answers: Answers) -> Self {
        debug_assert_eq!(values.len(), features * answers.len());
        Self {
            features,
            values,
            answers,
            positions: None,
        }
    }

    /// Makes samples that only a module can read: those from position `first` on, one for each of these classes.
    pub(super) fn of_module(first: u32, classes: Vec<u32>) -> Self {
        let positions = (first..).take(classes.len()).collect();
        Self {
            positions: Some(positions),
            ..Self::new(0, Values::Floats(Vec::new()), Answers::Labels(classes))
        }
    }

    /// Makes samples without labels; all labels are 0.
    pub(super) fn unlabelled(features: usize, values: Values) -> Self {
        let samples = values.len() / features.max(1);
        Self::new(features, values, Answers::Labels(vec![0; samples]))
    }

    /// Returns the samples at these rows, in this order. Samples in a scratch file are copied to another one.
    pub(super) fn part(&self, rows: &[u32]) -> Result<Self, DatasetError> {
        let values = match &self.values {
            Values::Scratch(floats) => Values::Scratch(floats.rows(rows, self.features)?),
            values => parts::pick(values, rows, self.features),
        };
        Ok(Self {
            positions: self.positions_at(rows),
            ..Self::new(self.features, values, self.answers_at(rows))
        })
    }

    /// Returns the positions of the samples at `indices` in a module's data; `None` if Tau reads the samples.
    #[must_use]
    pub fn positions_at(&self, indices: &[u32]) -> Option<Vec<u32>> {
        let all = self.positions.as_ref()?;
        Some(indices.iter().map(|&index| all[index as usize]).collect())
    }

    /// Returns the positions of all samples in a module's data; `None` if Tau reads the samples.
    #[must_use]
    pub fn all_positions(&self) -> Option<&[u32]> {
        self.positions.as_deref()
    }

    pub fn len(&self) -> usize {
        self.answers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Returns the number of features of each sample.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Expected outputs of all samples.
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Returns the label of each sample; empty if numbers are to be predicted.
    pub fn labels(&self) -> &[u32] {
        self.answers.labels()
    }

    /// Class of each sample, for dealing samples out to workers. If numbers are to be predicted, all have class 0.
    pub(crate) fn classes(&self) -> Arc<[u32]> {
        match &self.answers {
            Answers::Labels(labels) => labels.as_slice().into(),
            Answers::Numbers { .. } => vec![0; self.len()].into(),
        }
    }

    /// Returns the expected outputs of the samples at `indices`.
    #[must_use]
    pub fn answers_at(&self, indices: &[u32]) -> Answers {
        let mut answers = Answers::default();
        self.answers.gather(indices, &mut answers);
        answers
    }

    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// Replaces the contents of `inputs` and `answers` by the samples at `indices`: scaled, one row per sample.
    ///
    /// Once the two buffers have grown to the size of a minibatch, nothing is allocated.
    ///
    /// # Panics
    /// If an index is not below [`Samples::len`], or if a scratch file cannot be read.
    pub fn gather(&self, indices: &[u32], inputs: &mut Vec<f32>, answers: &mut Answers) {
        self.answers.gather(indices, answers);
        inputs.clear();
        inputs.reserve(indices.len() * self.features);
        let rows = indices.iter().map(|&index| {
            let start = index as usize * self.features;
            start..start + self.features
        });
        match &self.values {
            Values::Bytes(bytes) => rows.for_each(|row| {
                // A slice's iterator knows its length, so this compiles to vector code without a check per pixel.
                inputs.extend(bytes[row].iter().map(|&v| f32::from(v) * Scaling::UNIT));
            }),
            Values::Floats(floats) => rows.for_each(|row| inputs.extend_from_slice(&floats[row])),
            Values::Scratch(floats) => rows.for_each(|row| {
                let place = inputs.len();
                inputs.resize(place + self.features, 0.0);
                if let Err(error) = floats.read(row.start, &mut inputs[place..]) {
                    panic!("the scratch file of the data cannot be read any more: {error}");
                }
            }),
        }
    }
}

/// Prints the sizes of a set of samples instead of millions of numbers.
impl fmt::Debug for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Samples")
            .field("len", &self.len())
            .field("features", &self.features)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(labels: &[u32]) -> Answers {
        Answers::Labels(labels.to_vec())
    }

    #[test]
    fn bytes_are_gathered_in_the_order_asked_for_and_scaled() {
        let samples = Samples::new(2, Values::Bytes(vec![0, 255, 51, 102, 1, 2]), labels(&[7, 8, 9]));
        let (mut inputs, mut answers) = (vec![9.0; 50], labels(&[1; 50]));
        samples.gather(&[1, 0, 1], &mut inputs, &mut answers);
        let expected = [51.0, 102.0, 0.0, 255.0, 51.0, 102.0].map(|v| v * Scaling::UNIT);
        assert_eq!(inputs, expected);
        assert_eq!(inputs[3], 1.0);
        assert_eq!(answers.labels(), [8, 7, 8]);
    }

    #[test]
    fn floats_are_gathered_as_they_are() {
        let samples = Samples::new(1, Values::Floats(vec![0.5, -2.0]), labels(&[0, 1]));
        let (mut inputs, mut answers) = (Vec::new(), Answers::default());
        samples.gather(&[1, 0], &mut inputs, &mut answers);
        assert_eq!(inputs, [-2.0, 0.5]);
        assert_eq!(answers.labels(), [1, 0]);
        samples.gather(&[], &mut inputs, &mut answers);
        assert!(inputs.is_empty() && answers.is_empty());
    }

    #[test]
    fn grown_buffers_are_kept() {
        let samples = Samples::new(3, Values::Bytes(vec![0; 30]), labels(&[0; 10]));
        let (mut inputs, mut answers) = (Vec::new(), Answers::default());
        samples.gather(&[0; 8], &mut inputs, &mut answers);
        let before = (inputs.as_ptr(), answers.labels().as_ptr());
        samples.gather(&[9; 8], &mut inputs, &mut answers);
        assert_eq!(before, (inputs.as_ptr(), answers.labels().as_ptr()));
    }
}
