//! Dense steps: how far each of some neighbouring weights moves, in grid steps. Most of them do.

use crate::digest::{Digest, factor};
use crate::lattice::{BATCH_STEPS_MAX, GRID, Range, RangeError};
use crate::sums::Sums;

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
        let farthest = steps
            .iter()
            .fold(0, |farthest, steps| steps.unsigned_abs().max(farthest));
        (in_range && farthest < BATCH_STEPS_MAX).then_some(Self { first, steps })
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

    /// What they add to a replica's digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let sum = (u64::from(self.first)..)
            .zip(&self.steps)
            .map(|(index, &steps)| factor(index).wrapping_mul(i64::from(steps) as u64))
            .fold(0, u64::wrapping_add);
        Digest(sum)
    }

    /// Adds them to a replica held as grid counts. A count that would leave its type is out of range by far and stays
    /// where it is, which the digest shows.
    ///
    /// # Panics
    /// If they are of a model with more weights.
    pub fn apply_to_counts(&self, counts: &mut [i32]) -> Result<Range, RangeError> {
        let counts = &mut counts[self.first as usize..][..self.steps.len()];
        let mut largest = 0;
        for (count, steps) in counts.iter_mut().zip(&self.steps) {
            *count = count.checked_add(*steps).ok_or(RangeError)?;
            largest = largest.max(count.unsigned_abs());
        }
        Range::of_steps(largest)
    }

    /// Adds them to a replica held as floats and to a worker's own weights. Both are whole steps that floats hold, and so
    /// is their sum within the range: it is exact.
    ///
    /// # Panics
    /// If they are of a model with more weights.
    pub fn apply_to_both(&self, weights: &mut [f32], own: &mut [f32]) -> Result<Range, RangeError> {
        let place = self.first as usize..self.first as usize + self.steps.len();
        let copies = weights[place.clone()].iter_mut().zip(&mut own[place]);
        let mut largest: f32 = 0.0;
        for ((weight, own), &steps) in copies.zip(&self.steps) {
            let moved = steps as f32 * GRID;
            *weight += moved;
            *own += moved;
            largest = largest.max(weight.abs());
        }
        Range::of_weight(largest)
    }

    /// The same, without those that do not move.
    #[must_use]
    pub fn to_sums(&self) -> Sums {
        let entries = (self.first..).zip(self.steps.iter().copied());
        Sums::from_sorted(entries.filter(|&(_, steps)| steps != 0).collect())
    }
}
