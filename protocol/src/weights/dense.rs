//! Dense steps: the number of lattice steps by which each of some neighbouring weights moves, if most of them move.

use multiversion::multiversion;

use crate::weights::digest::Digest;
use crate::weights::lattice::{BATCH_STEPS_MAX, LATTICE_STEP, Range, RangeError};

/// Movement of some neighbouring weights within one batch: each moves by its own multiple of the smallest step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dense {
    first: u32,
    steps: Vec<i32>,
}

impl Dense {
    /// Creates a movement of neighbouring weights, from the weight `first` on, each by its own multiple of the smallest
    /// step, for a model of `weights` weights. `None` if the model has too few weights, or if a weight moves further
    /// than a batch may move it.
    #[must_use]
    pub fn checked(first: u32, steps: Vec<i32>, weights: usize) -> Option<Self> {
        let in_range = (first as usize)
            .checked_add(steps.len())
            .is_some_and(|end| end <= weights);
        (in_range && farthest(&steps) < BATCH_STEPS_MAX).then_some(Self { first, steps })
    }

    /// Creates a movement of neighbouring weights, from the weight `first` on, without a check: callers know that it
    /// lies within the model and that no weight moves too far for a batch.
    pub(crate) fn trusted(first: u32, steps: Vec<i32>) -> Self {
        debug_assert!(farthest(&steps) < BATCH_STEPS_MAX);
        Self { first, steps }
    }

    /// Returns the index of the first of the neighbouring weights that are moved.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Returns the distance by which each of the neighbouring weights moves, in order, as a multiple of the smallest
    /// step.
    #[must_use]
    pub fn steps(&self) -> &[i32] {
        &self.steps
    }

    /// Returns the distance by which each weight moves, as a multiple of the smallest step, without the index of the
    /// first weight.
    #[must_use]
    pub fn into_steps(self) -> Vec<i32> {
        self.steps
    }

    /// Returns the amount that this movement of weights adds to a replica's digest (checksum of all weights).
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of_neighbours(u64::from(self.first), &self.steps)
    }

    /// Moves the weights of a replica held as counts (weights as whole multiples of the smallest step). A count that
    /// would overflow is far out of range and stays unchanged, which the digest reveals.
    ///
    /// # Panics
    /// If the steps are of a model with more weights.
    pub fn apply_to_counts(&self, counts: &mut [i32]) -> Result<Range, RangeError> {
        let counts = &mut counts[self.first as usize..][..self.steps.len()];
        let (largest, all_fit) = add_to_counts(counts, &self.steps);
        if all_fit {
            Range::of_steps(largest)
        } else {
            Err(RangeError)
        }
    }

    /// Moves the weights of a replica held as floats, and those of a worker's own copy. Within the range, all of the
    /// replica's weights before and after are multiples of the smallest step that floats hold, so the addition to it is
    /// exact.
    ///
    /// # Panics
    /// If the steps are of a model with more weights.
    pub fn apply_to_both(&self, weights: &mut [f32], own: &mut [f32]) -> Result<Range, RangeError> {
        let place = self.first as usize..self.first as usize + self.steps.len();
        let largest = add_to_both(&mut weights[place.clone()], &mut own[place], &self.steps);
        Range::of_weight(largest)
    }
}

/// Adds numbers of steps to the `sums` of the same weights, or subtracts them. Returns `true` if no sum has overflowed.
#[must_use]
pub fn add_up(sums: &mut [i32], steps: &[i32], sign: Sign) -> bool {
    match sign {
        Sign::Plus => add_to_counts(sums, steps).1,
        Sign::Minus => subtract(sums, steps),
    }
}

/// Choice for [`add_up`]: to add or to subtract numbers of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Plus,
    Minus,
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn subtract(sums: &mut [i32], steps: &[i32]) -> bool {
    let mut leaves = 0;
    for (sum, &steps) in sums.iter_mut().zip(steps) {
        let rest = sum.wrapping_sub(steps);
        leaves |= (*sum ^ steps) & (*sum ^ rest);
        *sum = rest;
    }
    leaves >= 0
}

/// Returns the farthest distance by which any weight moves, as a multiple of the smallest step.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(crate) fn farthest(steps: &[i32]) -> u32 {
    steps
        .iter()
        .fold(0, |farthest, steps| steps.unsigned_abs().max(farthest))
}

/// Adds numbers of steps to the counts of the same weights. Returns the largest magnitude of a count, and `true` if no
/// count would have overflowed.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn add_to_counts(counts: &mut [i32], steps: &[i32]) -> (u32, bool) {
    let mut largest = 0;
    let mut leaves = 0;
    for (count, &steps) in counts.iter_mut().zip(steps) {
        let sum = count.wrapping_add(steps);
        // All ones where the sum has a sign that neither summand has. Without a branch, many sums are computed at a
        // time.
        let left = ((*count ^ sum) & (steps ^ sum)) >> 31;
        leaves |= left;
        *count = (sum & !left) | (*count & left);
        largest = count.unsigned_abs().max(largest);
    }
    (largest, leaves == 0)
}

/// Moves the weights of a worker's shared copy `weights` and of its own copy `own` by multiples of the smallest step.
/// Returns the largest magnitude in `weights`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn add_to_both(weights: &mut [f32], own: &mut [f32], steps: &[i32]) -> f32 {
    const SIGN: u32 = 1 << 31;
    let mut largest = 0;
    for ((weight, own), &steps) in weights.iter_mut().zip(own).zip(steps) {
        let moved = steps as f32 * LATTICE_STEP;
        *weight += moved;
        *own += moved;
        // Positive floats have the order of their bits.
        largest = largest.max(weight.to_bits() & !SIGN);
    }
    f32::from_bits(largest)
}
