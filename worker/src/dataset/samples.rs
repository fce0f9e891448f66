//! Samples in memory, and how minibatches are gathered from them.

use std::fmt;

use super::Scaling;

/// A set of samples: for each one its features and its label.
#[derive(Clone, PartialEq)]
pub struct Samples {
    features: usize,
    values: Values,
    labels: Vec<u32>,
}

/// The features of all samples, one sample after the other.
#[derive(Clone, PartialEq)]
pub(crate) enum Values {
    /// Pixels, scaled by [`Scaling::Unit`] when they are gathered: as bytes they take a quarter of the memory.
    Bytes(Vec<u8>),
    /// Numbers that were scaled already.
    Floats(Vec<f32>),
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Floats(floats) => floats.len(),
        }
    }
}

impl Samples {
    /// Joins features and labels, which the readers have checked to be of one count.
    pub(super) fn new(features: usize, values: Values, labels: Vec<u32>) -> Self {
        debug_assert_eq!(values.len(), features * labels.len());
        Self {
            features,
            values,
            labels,
        }
    }

    /// Samples whose labels nobody knows.
    pub(super) fn unlabelled(features: usize, values: Values) -> Self {
        let samples = values.len() / features.max(1);
        Self::new(features, values, vec![0; samples])
    }

    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// How many numbers each sample has.
    pub fn features(&self) -> usize {
        self.features
    }

    /// The label of each sample.
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// Replaces the contents of `inputs` and `labels` by the samples at `indices`: scaled, one row per sample.
    ///
    /// Nothing is allocated once the two buffers have grown to the size of a minibatch.
    ///
    /// # Panics
    /// If an index is not below [`Samples::len`].
    pub fn gather(&self, indices: &[u32], inputs: &mut Vec<f32>, labels: &mut Vec<u32>) {
        labels.clear();
        labels.extend(indices.iter().map(|&index| self.labels[index as usize]));
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
        }
    }
}

/// Says how much there is instead of printing millions of numbers.
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

    #[test]
    fn bytes_are_gathered_in_the_order_asked_for_and_scaled() {
        let samples = Samples::new(2, Values::Bytes(vec![0, 255, 51, 102, 1, 2]), vec![7, 8, 9]);
        let (mut inputs, mut labels) = (vec![9.0; 50], vec![1; 50]);
        samples.gather(&[1, 0, 1], &mut inputs, &mut labels);
        let expected = [51.0, 102.0, 0.0, 255.0, 51.0, 102.0].map(|v| v * Scaling::UNIT);
        assert_eq!(inputs, expected);
        assert_eq!(inputs[3], 1.0);
        assert_eq!(labels, [8, 7, 8]);
    }

    #[test]
    fn floats_are_gathered_as_they_are() {
        let samples = Samples::new(1, Values::Floats(vec![0.5, -2.0]), vec![0, 1]);
        let (mut inputs, mut labels) = (Vec::new(), Vec::new());
        samples.gather(&[1, 0], &mut inputs, &mut labels);
        assert_eq!(inputs, [-2.0, 0.5]);
        assert_eq!(labels, [1, 0]);
        samples.gather(&[], &mut inputs, &mut labels);
        assert!(inputs.is_empty() && labels.is_empty());
    }

    #[test]
    fn grown_buffers_are_kept() {
        let samples = Samples::new(3, Values::Bytes(vec![0; 30]), vec![0; 10]);
        let (mut inputs, mut labels) = (Vec::new(), Vec::new());
        samples.gather(&[0; 8], &mut inputs, &mut labels);
        let before = (inputs.as_ptr(), labels.as_ptr());
        samples.gather(&[9; 8], &mut inputs, &mut labels);
        assert_eq!(before, (inputs.as_ptr(), labels.as_ptr()));
    }
}
