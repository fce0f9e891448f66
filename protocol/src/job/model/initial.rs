//! Initial weights, which every node draws from the run's seed alone.

use super::{Layout, Role, TensorSlot};
use crate::rng::CounterRng;
use crate::weights::lattice::STEPS_PER_UNIT;

/// Number of the seed's random stream from which initial weights are drawn.
const STREAM: u64 = 1;
/// Half of the range of a 53-bit random word: dividing a word by it and subtracting 1 gives a number from -1 to 1
/// without rounding.
const HALF_RANGE: f64 = (1u64 << 52) as f64;

/// Returns the initial weights of a model as counts (whole steps of 2^-20). Each weight is drawn evenly from `±√(6 /
/// fan_in)` and rounded; biases are 0, and gains 1.
///
/// With this spread (He's) activations keep their size through layers of rectifiers, so gradients are large from the
/// first step on. That saves up to half of the samples that other spreads need to get going, most with many workers.
///
/// Only a square root and products of `f64` are used, which IEEE 754 fixes to the bit. Normal distributions need
/// logarithms or cosines, which differ between platforms.
#[must_use]
pub fn initial_counts(layout: &Layout, seed: u64) -> Vec<i32> {
    let mut counts = Vec::with_capacity(layout.weights);
    for tensor in &layout.tensors {
        counts.extend(initial_counts_at(tensor, tensor.offset, seed));
    }
    counts
}

/// Returns the initial weights of one tensor as counts (whole steps of 2^-20). The tensor's first weight has the index
/// `place` in the whole model.
#[must_use]
pub fn initial_counts_at(tensor: &TensorSlot, place: usize, seed: u64) -> Vec<i32> {
    let elements = tensor.elements();
    let constant = match tensor.role {
        Role::Weight | Role::AdamMatrix => None,
        Role::Bias | Role::Statistic => Some(0),
        Role::Gain => Some(STEPS_PER_UNIT),
    };
    if let Some(constant) = constant {
        return vec![constant; elements];
    }
    let random = CounterRng::new(seed, STREAM);
    let bound_steps = f64::from(STEPS_PER_UNIT) * (6.0 / tensor.fan_in as f64).sqrt();
    let drawn = (place..place + elements).map(|index| {
        let unit = (random.at(index as u64) >> 11) as f64 / HALF_RANGE - 1.0;
        (unit * bound_steps).round_ties_even() as i32
    });
    drawn.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::model::Shape;
    use crate::weights::digest::Digest;

    #[test]
    fn weights_are_spread_evenly_and_depend_on_the_seed_alone() {
        let layout = Layout::new(&"dense 100, relu, dense 10".parse().unwrap(), Shape::Flat(600), 10).unwrap();
        let counts = initial_counts(&layout, 1);
        assert_eq!(counts, initial_counts(&layout, 1));
        assert_ne!(counts, initial_counts(&layout, 2));
        for tensor in layout.tensors.iter().filter(|tensor| tensor.role == Role::Bias) {
            assert!(counts[tensor.range()].iter().all(|&count| count == 0), "{}", tensor.key);
        }
        let weights = &counts[layout.layers[0].parameters.clone().unwrap().0];
        let bound = STEPS_PER_UNIT / 10;
        assert!(weights.iter().all(|count| count.abs() <= bound));
        let mean = weights.iter().map(|&c| f64::from(c)).sum::<f64>() / weights.len() as f64;
        assert!(mean.abs() < f64::from(bound) / 100.0);
        let square = weights.iter().map(|&c| f64::from(c).powi(2)).sum::<f64>() / weights.len() as f64;
        let expected = f64::from(bound).powi(2) / 3.0;
        assert!((square / expected - 1.0).abs() < 0.03);
    }

    #[test]
    fn golden_digest() {
        // All nodes of a run start from these weights, so a change of them is a change of the protocol.
        let layout = Layout::new(&"dense 3".parse().unwrap(), Shape::Flat(4), 3).unwrap();
        assert_eq!(
            Digest::of_counts(&initial_counts(&layout, 1)).to_string(),
            "abf3281d30669c25"
        );
    }
}
