//! Splits samples into training, test and validation samples.

use protocol::rng::CounterRng;

use super::samples::Values;

/// Random stream of the run's seed that selects test samples ("csvsplit" in ASCII, so that no other use of the seed has
/// the same by chance). Changing it changes every split.
const SPLIT_STREAM: u64 = u64::from_be_bytes(*b"csvsplit");

/// Random stream of the run's seed that selects validation samples among the training samples.
const VALIDATION_STREAM: u64 = u64::from_be_bytes(*b"validate");

/// Splits samples by a seed: returns the indices of the training and of the test samples. `share` is the fraction of
/// test samples.
pub(super) fn by_seed(samples: usize, share: f64, seed: u64) -> (Vec<u32>, Vec<u32>) {
    split(samples, share, CounterRng::new(seed, SPLIT_STREAM))
}

/// Splits training samples by a seed: returns the indices of the remaining ones and of the validation samples. `share`
/// is the fraction of validation samples.
pub(super) fn for_validation(samples: usize, share: f64, seed: u64) -> (Vec<u32>, Vec<u32>) {
    split(samples, share, CounterRng::new(seed, VALIDATION_STREAM))
}

fn split(samples: usize, share: f64, mut rng: CounterRng) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..samples as u32).collect();
    rng.shuffle(&mut order);
    let train = order.split_off(test_count(samples, share));
    (train, order)
}

/// Returns the number of test samples: the nearest whole number to the share, but at least one.
fn test_count(samples: usize, share: f64) -> usize {
    ((samples as f64 * share).round() as usize).clamp(samples.min(1), samples)
}

/// Copies the values of the samples at `rows`, in this order. Values in a scratch file are returned whole:
/// `Samples::part` picks from those.
pub(super) fn pick(values: &Values, rows: &[u32], width: usize) -> Values {
    fn picked<T: Copy>(all: &[T], rows: &[u32], width: usize) -> Vec<T> {
        let rows = rows.iter().map(|&row| &all[row as usize * width..][..width]);
        rows.flatten().copied().collect()
    }
    match values {
        Values::Bytes(all) => Values::Bytes(picked(all, rows, width)),
        Values::Floats(all) => Values::Floats(picked(all, rows, width)),
        Values::Scratch(all) => Values::Scratch(all.clone()),
    }
}
