//! The digest: one number that two replicas share exactly when their weights are equal.
//!
//! `D = Σ h(i)·count_i mod 2^64` with `h(i) = splitmix64(i) | 1`. It is linear, so the digest of a replica after a
//! batch is the digest before plus the batch's own, whatever the order of batches; a replica can be checked against
//! the digest its frontier should have without asking anybody.

use std::fmt;
use std::ops::{Add, AddAssign};

use multiversion::multiversion;
use serde::{Deserialize, Serialize};

use crate::rng::splitmix64;
use crate::weights::lattice::{RANGE_ERROR_STEPS, Tau, count_of};

/// The digest of a replica, or what a batch adds to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(pub u64);

/// The factor of weight `index`. Odd, so that no count but 0 vanishes.
#[must_use]
pub const fn factor(index: u64) -> u64 {
    splitmix64(index) | 1
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn sum_of_neighbours(first: u64, counts: &[i32]) -> u64 {
    let mut sum = 0u64;
    for (place, &count) in counts.iter().enumerate() {
        let factor = factor(first + place as u64);
        sum = sum.wrapping_add(factor.wrapping_mul(i64::from(count) as u64));
    }
    sum
}

impl Digest {
    /// The digest of a replica held as counts.
    #[must_use]
    pub fn of_counts(counts: &[i32]) -> Self {
        Self::of_neighbours(0, counts)
    }

    /// The digest of counts, or of changes to them, of neighbouring weights from this one on.
    #[must_use]
    pub fn of_neighbours(first: u64, counts: &[i32]) -> Self {
        Self(sum_of_neighbours(first, counts))
    }

    /// The digest of a replica held as floats; `None` if a weight is not on the lattice.
    #[must_use]
    pub fn of_weights(weights: &[f32]) -> Option<Self> {
        let mut sum = 0u64;
        for (index, &weight) in (0u64..).zip(weights) {
            sum = sum.wrapping_add(factor(index).wrapping_mul(i64::from(count_of(weight)?) as u64));
        }
        Some(Self(sum))
    }

    /// What changes (`index << 1 | plus`) of τ add to a digest.
    #[must_use]
    pub fn of_changes(changes: &[u32], tau: Tau) -> Self {
        let steps = u64::from(tau.steps());
        let sum = changes
            .iter()
            .map(|&change| {
                // All ones for minus, zero for plus: negation in two's complement without a branch.
                let minus = u64::from(change & 1).wrapping_sub(1);
                (factor(u64::from(change >> 1)) ^ minus).wrapping_sub(minus)
            })
            .fold(0, u64::wrapping_add);
        Self(sum.wrapping_mul(steps))
    }
}

/// Finds the one weight of a replica in which a bit has flipped, by the digest that the replica should have: its index,
/// and what its count was. `None` if more is wrong than one bit, or less.
///
/// Factors are odd, so the lowest bit in which the digests differ is the flipped one, and a weight whose factor explains
/// the whole difference is the right one: of 2^64 differences only two a weight are of this kind.
#[must_use]
pub fn flipped_bit(counts: &[i32], expected: Digest) -> Option<(usize, i32)> {
    let difference = Digest::of_counts(counts).0.wrapping_sub(expected.0);
    let bit = difference.trailing_zeros();
    if bit >= i32::BITS {
        return None;
    }
    let mut found = (0u64..).zip(counts).filter_map(|(index, &count)| {
        let explained = factor(index) << bit;
        let before = match difference {
            _ if difference == explained => count.wrapping_sub(1 << bit),
            _ if difference == explained.wrapping_neg() => count.wrapping_add(1 << bit),
            _ => return None,
        };
        (before.unsigned_abs() < RANGE_ERROR_STEPS as u32).then_some((index as usize, before))
    });
    let first = found.next();
    // Of two candidates nobody knows which one it is.
    first.filter(|_| found.next().is_none())
}

impl Add for Digest {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }
}

impl AddAssign for Digest {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::lattice::weight_of;

    #[test]
    fn floats_and_counts_have_one_digest() {
        let counts = [3, -7, 0, 1 << 24, -(1 << 24), 12_345];
        let weights = counts.map(weight_of);
        assert_eq!(Digest::of_weights(&weights), Some(Digest::of_counts(&counts)));
        assert_eq!(Digest::of_weights(&[0.1]), None);
    }

    #[test]
    fn a_change_moves_the_digest_as_it_moves_the_count() {
        let tau = Tau::from_steps(5).unwrap();
        let before = Digest::of_counts(&[10, 20, 30]);
        let changes = [(1 << 1) | 1, (1 << 1) | 1, 2 << 1];
        assert_eq!(
            before + Digest::of_changes(&changes, tau),
            Digest::of_counts(&[10, 30, 25])
        );
    }

    #[test]
    fn one_flipped_bit_is_found_again_and_two_are_not() {
        let counts: Vec<i32> = (0..1000).map(|at| at * 31 - 9000).collect();
        let expected = Digest::of_counts(&counts);
        assert_eq!(flipped_bit(&counts, expected), None);
        for bit in 0..32 {
            let index = (37 * bit) % 999;
            let mut flipped = counts.clone();
            flipped[index] ^= 1 << bit;
            assert_eq!(flipped_bit(&flipped, expected), Some((index, counts[index])), "{bit}");
            flipped[index + 1] ^= 1 << bit;
            assert_eq!(flipped_bit(&flipped, expected), None, "{bit}");
        }
    }

    #[test]
    fn printed_as_sixteen_hex_digits() {
        assert_eq!(Digest(0xab).to_string(), "00000000000000ab");
    }

    #[test]
    fn golden_value() {
        // Fixed for ever: digests are stored in model files and compared between versions.
        assert_eq!(Digest::of_counts(&[1, 2, 3]).to_string(), "ca3da5ace2e88b9e");
    }
}
