//! Which samples are trained on, and which are kept for testing.

use protocol::rng::CounterRng;

use super::samples::Values;

/// The stream of a run's seed that decides which samples are kept for testing ("csvsplit" in ASCII, so that no other
/// use of the seed picks it by chance). Changing it changes every split.
const SPLIT_STREAM: u64 = u64::from_be_bytes(*b"csvsplit");

/// The stream of a run's seed that decides which training samples are set aside for validation.
const VALIDATION_STREAM: u64 = u64::from_be_bytes(*b"validate");

/// Samples to train on and to test on, in their order, of which such a share is for testing.
pub(super) fn by_seed(samples: usize, share: f64, seed: u64) -> (Vec<u32>, Vec<u32>) {
    split(samples, share, CounterRng::new(seed, SPLIT_STREAM))
}

/// The training samples that remain, and those set aside for validation, which are this share of all.
pub(super) fn for_validation(samples: usize, share: f64, seed: u64) -> (Vec<u32>, Vec<u32>) {
    split(samples, share, CounterRng::new(seed, VALIDATION_STREAM))
}

fn split(samples: usize, share: f64, mut rng: CounterRng) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..samples as u32).collect();
    rng.shuffle(&mut order);
    let train = order.split_off(test_count(samples, share));
    (train, order)
}

/// How many of the samples are kept for testing: the nearest whole number, but at least one.
fn test_count(samples: usize, share: f64) -> usize {
    ((samples as f64 * share).round() as usize).clamp(samples.min(1), samples)
}

/// Some samples' values in this order.
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
