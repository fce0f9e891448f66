//! Sums: the lattice steps by which each weight moves over several batches together. They are exact, so they add and
//! subtract.

use crate::weights::dense::Dense;
use crate::weights::digest::{Digest, factor};
use crate::weights::lattice::{LATTICE_STEP, Range, RangeError, STEPS_PER_UNIT, Tau, weight_of};

/// Exact sum of several batches: the weights that it moves, each with the multiple of the smallest step by which it
/// moves; sorted by index, without weights that do not move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    entries: Vec<(u32, i32)>,
}

impl Sums {
    pub(crate) fn from_sorted(entries: Vec<(u32, i32)>) -> Self {
        debug_assert!(entries.is_sorted_by(|a, b| a.0 < b.0) && entries.iter().all(|entry| entry.1 != 0));
        Self { entries }
    }

    /// Creates a sum of batches from entries that another process sent: the index of a weight and the number of steps
    /// by which it moves. `None` if they are not sorted, name a weight that a model of `weights` weights does not have,
    /// or move a weight by zero or by more than can be negated.
    #[must_use]
    pub fn checked(entries: Vec<(u32, i32)>, weights: usize) -> Option<Self> {
        let in_range = entries.last().is_none_or(|last| (last.0 as usize) < weights);
        let sound = entries.iter().all(|entry| entry.1 != 0 && entry.1 != i32::MIN);
        let sorted = entries.is_sorted_by(|a, b| a.0 < b.0);
        (in_range && sound && sorted).then_some(Self { entries })
    }

    /// Returns the movement of weights that turns a replica with the counts `before` into one with the counts `after`,
    /// of the same length; `None` if a difference is too large.
    #[must_use]
    pub fn between(before: &[i32], after: &[i32]) -> Option<Self> {
        let mut entries = Vec::new();
        for (index, (&before, &after)) in (0..).zip(before.iter().zip(after)) {
            match after.checked_sub(before)? {
                0 => {}
                i32::MIN => return None,
                steps => entries.push((index, steps)),
            }
        }
        Some(Self { entries })
    }

    /// Returns the weights that move, sorted by index: the index of each, and the multiple of the smallest step by
    /// which it moves.
    #[must_use]
    pub fn entries(&self) -> &[(u32, i32)] {
        &self.entries
    }

    /// Adds a sum of batches to a replica held as counts (weights as whole multiples of the smallest step). At a count
    /// that would overflow, which is far out of range, it stops with an error.
    ///
    /// # Panics
    /// If an index is not below `counts.len()`.
    pub fn apply_to_counts(&self, counts: &mut [i32]) -> Result<Range, RangeError> {
        let mut largest = 0;
        for &(index, steps) in &self.entries {
            let count = &mut counts[index as usize];
            *count = count.checked_add(steps).ok_or(RangeError)?;
            largest = largest.max(count.unsigned_abs());
        }
        Range::of_steps(largest)
    }

    /// Adds a sum of batches to a replica held as floats and to a worker's own copy. In the replica, whose weights are
    /// multiples of the smallest step, it is added as integers, because it may move a weight by more steps than a float
    /// addition keeps exact.
    ///
    /// # Panics
    /// If an index is not below the length of either copy.
    pub fn apply_to_both(&self, weights: &mut [f32], own: &mut [f32]) -> Result<Range, RangeError> {
        let mut largest = 0;
        for &(index, steps) in &self.entries {
            let index = index as usize;
            let count = (weights[index] * STEPS_PER_UNIT as f32) as i32;
            let moved = count.checked_add(steps).ok_or(RangeError)?;
            weights[index] = weight_of(moved);
            own[index] += steps as f32 * LATTICE_STEP;
            largest = largest.max(moved.unsigned_abs());
        }
        Range::of_steps(largest)
    }

    /// Returns the amount that this sum of batches adds to a replica's digest (checksum of all weights).
    #[must_use]
    pub fn digest(&self) -> Digest {
        let sum = self
            .entries
            .iter()
            .map(|&(index, steps)| factor(u64::from(index)).wrapping_mul(i64::from(steps) as u64))
            .fold(0, u64::wrapping_add);
        Digest(sum)
    }
}

/// Converts the movement of neighbouring weights to a sum, which lists only the weights that move.
impl From<&Dense> for Sums {
    fn from(dense: &Dense) -> Self {
        let entries = (dense.first()..).zip(dense.steps().iter().copied());
        Self::from_sorted(entries.filter(|&(_, steps)| steps != 0).collect())
    }
}

/// Builder of the exact sum of several batches of one model, which moves each weight at once as the batches do one by
/// one.
#[derive(Debug)]
pub struct Adder {
    steps: Vec<i32>,
    /// True if the sum for a weight has overflowed, so that there is no result.
    overflown: bool,
}

impl Adder {
    /// Starts a sum without batches, in which no weight moves, for a model of `weights` weights.
    #[must_use]
    pub fn new(weights: usize) -> Self {
        Self {
            steps: vec![0; weights],
            overflown: false,
        }
    }

    /// Adds a batch to the sum: changes that have passed the check, each of which moves a weight by plus or minus
    /// `tau`.
    ///
    /// # Panics
    /// If an index is not below the number of weights.
    pub fn add_changes(&mut self, changes: &[u32], tau: Tau) {
        let steps = tau.steps() as i32;
        for &change in changes {
            self.add((change >> 1) as usize, if change & 1 == 1 { steps } else { -steps });
        }
    }

    /// Adds the sum of several batches to this one.
    ///
    /// # Panics
    /// If an index is not below the number of weights.
    pub fn add_sums(&mut self, sums: &Sums) {
        for &(index, steps) in &sums.entries {
            self.add(index as usize, steps);
        }
    }

    /// Adds a dense batch, which moves neighbouring weights, to the sum.
    ///
    /// # Panics
    /// If the steps are of a model with more weights.
    pub fn add_dense(&mut self, dense: &Dense) {
        for (index, &steps) in (dense.first() as usize..).zip(dense.steps()) {
            self.add(index, steps);
        }
    }

    /// Subtracts a sum of batches that was added before.
    ///
    /// # Panics
    /// If an index is not below the number of weights.
    pub fn subtract(&mut self, sums: &Sums) {
        for &(index, steps) in &sums.entries {
            // No entry is `i32::MIN`, so each can be negated.
            self.add(index as usize, -steps);
        }
    }

    /// Returns the total of all added batches; `None` if it moves a weight by more steps than an `i32` holds, which
    /// does not happen to a run within its range.
    #[must_use]
    pub fn finish(self) -> Option<Sums> {
        let entries = (0u32..).zip(self.steps).filter(|&(_, steps)| steps != 0);
        (!self.overflown).then(|| Sums::from_sorted(entries.collect()))
    }

    fn add(&mut self, index: usize, steps: i32) {
        let (sum, overflown) = self.steps[index].overflowing_add(steps);
        self.steps[index] = sum;
        self.overflown |= overflown || sum == i32::MIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::changes::{apply_to_counts, change};

    #[test]
    fn sums_are_what_their_changes_are() {
        let (one, other) = (Tau::from_steps(5).unwrap(), Tau::from_steps(7).unwrap());
        let first = [change(0, true), change(2, false), change(2, false), change(4, true)];
        let second = [change(2, true), change(4, false)];
        let mut counts = [100; 6];
        apply_to_counts(&first, one, &mut counts).unwrap();
        apply_to_counts(&second, other, &mut counts).unwrap();
        let mut adder = Adder::new(6);
        adder.add_changes(&first, one);
        adder.add_changes(&second, other);
        let sums = adder.finish().unwrap();
        assert_eq!(sums.entries(), [(0, 5), (2, -3), (4, -2)]);
        assert_eq!(Sums::between(&[100; 6], &counts), Some(sums.clone()));
        let (mut replica, mut weights, mut own) = ([100; 6], [weight_of(100); 6], [0.25; 6]);
        assert_eq!(sums.apply_to_counts(&mut replica), Ok(Range::Safe));
        assert_eq!(sums.apply_to_both(&mut weights, &mut own), Ok(Range::Safe));
        assert_eq!((replica, weights), (counts, counts.map(weight_of)));
        assert_eq!(own[2], 0.25 - 3.0 * LATTICE_STEP);
        let digests = Digest::of_changes(&first, one) + Digest::of_changes(&second, other);
        assert_eq!(sums.digest(), digests);
        let mut back = Adder::new(6);
        back.add_sums(&sums);
        back.subtract(&sums);
        assert_eq!(back.finish(), Some(Sums::default()));
    }

    #[test]
    fn entries_from_elsewhere_are_checked() {
        let checked = |entries: &[(u32, i32)]| Sums::checked(entries.to_vec(), 5).is_some();
        assert!(checked(&[]) && checked(&[(0, 1), (4, -1)]));
        assert!(!checked(&[(5, 1)]) && !checked(&[(1, 0)]) && !checked(&[(1, i32::MIN)]));
        assert!(!checked(&[(2, 1), (1, 1)]) && !checked(&[(1, 1), (1, 1)]));
    }

    #[test]
    fn what_is_too_large_has_no_sum() {
        let mut adder = Adder::new(1);
        let large = Sums::from_sorted(vec![(0, i32::MAX)]);
        adder.add_sums(&large);
        adder.add_sums(&large);
        assert_eq!(adder.finish(), None);
    }
}
