//! Classes: arbitrary labels, numbered densely.

/// The class of every sample, with classes numbered from zero in the order of their labels.
///
/// Labels are arbitrary numbers; dense numbers allow one counter per class in a plain vector, and make sure that every
/// class has at least one sample.
pub(super) struct Classes {
    of_sample: Vec<u32>,
    sizes: Vec<u32>,
}

impl Classes {
    /// Creates the classes of a list of labels, numbered in the order of the labels.
    pub(super) fn new(labels: &[u32]) -> Self {
        let mut distinct = labels.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let mut sizes = vec![0; distinct.len()];
        let of_sample = labels
            .iter()
            .map(|label| {
                // The list holds every label, so the first entry that is not smaller is the label itself.
                let class = distinct.partition_point(|known| known < label);
                sizes[class] += 1;
                class as u32
            })
            .collect();
        Self { of_sample, sizes }
    }

    pub(super) fn of(&self, sample: u32) -> usize {
        self.of_sample[sample as usize] as usize
    }

    /// Returns the number of samples in each class.
    pub(super) fn sizes(&self) -> &[u32] {
        &self.sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_labels_become_dense_classes_in_label_order() {
        let classes = Classes::new(&[900, 7, u32::MAX, 7, 900, 7]);
        assert_eq!(classes.sizes(), [3, 2, 1]);
        let all: Vec<usize> = (0..6).map(|sample| classes.of(sample)).collect();
        assert_eq!(all, [1, 0, 2, 0, 1, 0]);
    }

    #[test]
    fn no_labels_make_no_classes() {
        assert!(Classes::new(&[]).sizes().is_empty());
    }
}
