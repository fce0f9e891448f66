//! The expected outputs of samples: a label, or the numbers to predict.

/// Expected outputs of samples, in the samples' order.
#[derive(Clone, Debug, PartialEq)]
pub enum Answers {
    /// Classes are to be predicted: the number of each sample's class.
    Labels(Vec<u32>),
    /// Numbers are to be predicted: standardised, one row per sample.
    Numbers {
        /// Number of target numbers per sample; never 0.
        width: usize,
        /// Target numbers of all samples, row by row.
        values: Vec<f32>,
    },
}

impl Default for Answers {
    fn default() -> Self {
        Self::Labels(Vec::new())
    }
}

impl Answers {
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Labels(labels) => labels.len(),
            Self::Numbers { width, values } => values.len() / width,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the labels; empty if numbers are to be predicted.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        match self {
            Self::Labels(labels) => labels,
            Self::Numbers { .. } => &[],
        }
    }

    /// Returns the target numbers, row by row; empty if labels are to be predicted.
    #[must_use]
    pub fn numbers(&self) -> &[f32] {
        match self {
            Self::Labels(_) => &[],
            Self::Numbers { values, .. } => values,
        }
    }

    /// Replaces the contents of `to` by the expected outputs of the samples at `indices`. Once `to` has grown to the
    /// size of a minibatch, nothing is allocated.
    pub(crate) fn gather(&self, indices: &[u32], to: &mut Self) {
        match (self, to) {
            (Self::Labels(all), Self::Labels(to)) => {
                to.clear();
                to.extend(indices.iter().map(|&index| all[index as usize]));
            }
            (
                Self::Numbers { width, values },
                Self::Numbers {
                    width: wide,
                    values: to,
                },
            ) => {
                *wide = *width;
                to.clear();
                for &index in indices {
                    to.extend_from_slice(&values[index as usize * width..][..*width]);
                }
            }
            (Self::Labels(_), to) => {
                *to = Self::Labels(Vec::new());
                self.gather(indices, to);
            }
            (Self::Numbers { width, .. }, to) => {
                *to = Self::Numbers {
                    width: *width,
                    values: Vec::new(),
                };
                self.gather(indices, to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_becomes_what_is_gathered() {
        let labels = Answers::Labels(vec![7, 8, 9]);
        let numbers = Answers::Numbers {
            width: 2,
            values: vec![0.0, 1.0, 2.0, 3.0],
        };
        let mut buffer = Answers::default();
        numbers.gather(&[1, 0, 1], &mut buffer);
        assert_eq!(buffer.numbers(), [2.0, 3.0, 0.0, 1.0, 2.0, 3.0]);
        assert_eq!((buffer.len(), buffer.labels()), (3, &[][..]));
        labels.gather(&[2, 0], &mut buffer);
        assert_eq!(
            (buffer.len(), buffer.labels(), buffer.numbers()),
            (2, &[9, 7][..], &[][..])
        );
        assert!(!buffer.is_empty());
    }
}
