//! The MNIST digits, embedded in the program so that a first run needs no download.

use std::path::PathBuf;

use super::idx::{self, LabelledImages};
use super::{Dataset, DatasetError, Known};

/// Expands to the path and the bytes of one file that is embedded in the program.
macro_rules! embedded {
    ($name:literal) => {
        (
            PathBuf::from(concat!("built-in ", $name)),
            include_bytes!(concat!("../../data/", $name)).as_slice(),
        )
    };
}

/// Opens the built-in dataset of handwritten digits, which is embedded in the program.
pub(super) fn open(known: Option<Known<'_>>) -> Result<Dataset, DatasetError> {
    let train = LabelledImages::read(
        embedded!("train-images-idx3-ubyte.gz"),
        embedded!("train-labels-idx1-ubyte.gz"),
    )?;
    let test = LabelledImages::read(
        embedded!("t10k-images-idx3-ubyte.gz"),
        embedded!("t10k-labels-idx1-ubyte.gz"),
    )?;
    idx::assemble(train, test, known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Answers;
    use protocol::job::model::Shape;

    /// Number of occurrences of each of the ten labels.
    fn counts(labels: &[u32]) -> [u32; 10] {
        let mut counts = [0; 10];
        for &label in labels {
            counts[label as usize] += 1;
        }
        counts
    }

    #[test]
    fn the_digits_are_those_of_mnist() {
        let mnist = open(None).unwrap();
        let image = Shape::Image {
            channels: 1,
            height: 28,
            width: 28,
        };
        assert_eq!(mnist.input, image);
        assert_eq!(
            mnist.target.classes(),
            ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
        );
        assert_eq!((mnist.train.len(), mnist.test.len()), (60_000, 10_000));
        assert_eq!(
            counts(mnist.train.labels()),
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        );
        assert_eq!(
            counts(mnist.test.labels()),
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
        );
        // The mean pixel by which MNIST is usually normalised.
        let all: Vec<u32> = (0..60_000).collect();
        let (mut inputs, mut answers) = (Vec::new(), Answers::default());
        mnist.train.gather(&all, &mut inputs, &mut answers);
        let mean = inputs.iter().copied().map(f64::from).sum::<f64>() / inputs.len() as f64;
        assert!((mean - 0.1307).abs() < 1e-4, "{mean}");
    }

    #[test]
    fn the_hash_is_the_same_each_time() {
        assert_eq!(open(None).unwrap().hash, open(None).unwrap().hash);
    }
}
