//! Dense steps: how far each of some neighbouring weights moves, in lattice steps. Most of them do.

use multiversion::multiversion;

use crate::weights::digest::Digest;
use crate::weights::lattice::{BATCH_STEPS_MAX, LATTICE_STEP, Range, RangeError};

/// How far each of some neighbouring weights moves within one batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dense {
    first: u32,
    steps: Vec<i32>,
}

impl Dense {
    /// Steps of the weights from this one on, for a model of so many weights; none if there are not so many, or one moves
    /// further than a batch can move it.
    #[must_use]
    pub fn checked(first: u32, steps: Vec<i32>, weights: usize) -> Option<Self> {
        let in_range = (first as usize)
            .checked_add(steps.len())
            .is_some_and(|end| end <= weights);
        (in_range && farthest(&steps) < BATCH_STEPS_MAX).then_some(Self { first, steps })
    }

    /// Steps that are known to be of weights that the model has, and not too large.
    pub(crate) fn trusted(first: u32, steps: Vec<i32>) -> Self {
        debug_assert!(farthest(&steps) < BATCH_STEPS_MAX);
        Self { first, steps }
    }

    /// The index of the first weight.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// The steps of each weight, from the first on.
    #[must_use]
    pub fn steps(&self) -> &[i32] {
        &self.steps
    }

    /// The steps alone.
    #[must_use]
    pub fn into_steps(self) -> Vec<i32> {
        self.steps
    }

    /// What they add to a replica's digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of_neighbours(u64::from(self.first), &self.steps)
    }

    /// Adds them to a replica held as counts. A count that would leave its type is out of range by far and stays
    /// where it is, which the digest shows.
    ///
    /// # Panics
    /// If they are of a model with more weights.
    pub fn apply_to_counts(&self, counts: &mut [i32]) -> Result<Range, RangeError> {
        let counts = &mut counts[self.first as usize..][..self.steps.len()];
        let (largest, all_fit) = add_to_counts(counts, &self.steps);
        if all_fit {
            Range::of_steps(largest)
        } else {
            Err(RangeError)
        }
    }

    /// Adds them to a replica held as floats and to a worker's own weights. Both are whole steps that floats hold, and so
    /// is their sum within the range: it is exact.
    ///
    /// # Panics
    /// If they are of a model with more weights.
    pub fn apply_to_both(&self, weights: &mut [f32], own: &mut [f32]) -> Result<Range, RangeError> {
        let place = self.first as usize..self.first as usize + self.steps.len();
        let largest = add_to_both(&mut weights[place.clone()], &mut own[place], &self.steps);
        Range::of_weight(largest)
    }
}

/// Adds steps to steps, or takes them away; whether no sum has left its type.
#[must_use]
pub fn add_up(sums: &mut [i32], steps: &[i32], sign: Sign) -> bool {
    match sign {
        Sign::Plus => add_to_counts(sums, steps).1,
        Sign::Minus => subtract(sums, steps),
    }
}

/// Whether steps are added or taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// They are added.
    Plus,
    /// They are taken away.
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

/// The most steps that any weight moves.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(crate) fn farthest(steps: &[i32]) -> u32 {
    steps
        .iter()
        .fold(0, |farthest, steps| steps.unsigned_abs().max(farthest))
}

/// Adds steps to counts. The largest count, and whether none would have left its type.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn add_to_counts(counts: &mut [i32], steps: &[i32]) -> (u32, bool) {
    let mut largest = 0;
    let mut leaves = 0;
    for (count, &steps) in counts.iter_mut().zip(steps) {
        let sum = count.wrapping_add(steps);
        // All ones where the sum has a sign that neither has: without a branch, many go at a time.
        let left = ((*count ^ sum) & (steps ^ sum)) >> 31;
        leaves |= left;
        *count = (sum & !left) | (*count & left);
        largest = count.unsigned_abs().max(largest);
    }
    (largest, leaves == 0)
}

/// Adds steps to both copies. The largest weight.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn add_to_both(weights: &mut [f32], own: &mut [f32], steps: &[i32]) -> f32 {
    const SIGN: u32 = 1 << 31;
    let mut largest = 0;
    for ((weight, own), &steps) in weights.iter_mut().zip(own).zip(steps) {
        let moved = steps as f32 * LATTICE_STEP;
        *weight += moved;
        *own += moved;
        // Positive floats are in the order of their bits.
        largest = largest.max(weight.to_bits() & !SIGN);
    }
    f32::from_bits(largest)
}
