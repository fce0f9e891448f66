//! The digest: one number for all weights of a replica. Replicas with equal weights have equal digests.
//!
//! `D = Σ h(i)·count_i mod 2^64` with `h(i) = splitmix64(i) | 1`. The digest is linear: after a batch it is the digest
//! before plus the batch's own, whatever the order of batches. A replica can therefore be checked against the digest
//! that its frontier implies, without asking another node.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use multiversion::multiversion;
use serde::{Deserialize, Serialize};

use crate::rng::splitmix64;
use crate::weights::lattice::{RANGE_ERROR_STEPS, Tau, count_of};

/// Digest (checksum) of all weights of a replica, by which replicas are compared; or the amount that a batch adds to
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(pub u64);

/// Returns the number by which the count of weight `index` is multiplied in a digest, the sum over all weights. It is
/// odd, so that only the count 0 adds nothing.
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
    /// Returns the digest of a replica held as counts (weights as whole multiples of the smallest step).
    #[must_use]
    pub fn of_counts(counts: &[i32]) -> Self {
        Self::of_neighbours(0, counts)
    }

    /// Returns the part of a digest that comes from the neighbouring weights from `first` on. With their movement in
    /// steps instead of their counts, it returns the amount that this movement adds to the digest.
    #[must_use]
    pub fn of_neighbours(first: u64, counts: &[i32]) -> Self {
        Self(sum_of_neighbours(first, counts))
    }

    /// Returns the digest of a replica held as floats; `None` if a weight is not a multiple of the smallest step that
    /// weights can make.
    #[must_use]
    pub fn of_weights(weights: &[f32]) -> Option<Self> {
        let mut sum = 0u64;
        for (index, &weight) in (0u64..).zip(weights) {
            sum = sum.wrapping_add(factor(index).wrapping_mul(i64::from(count_of(weight)?) as u64));
        }
        Some(Self(sum))
    }

    /// Returns the amount that changes add to a replica's digest. Each change, `index << 1 | plus`, moves a weight by
    /// plus or minus τ.
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

/// Finds the only weight of a replica in which one bit has flipped, by the digest that the replica should have. Returns
/// the weight's index and its count before the flip; `None` if more than one bit is wrong, or none.
///
/// In a digest, each weight's count is multiplied by an odd factor, so the lowest bit in which the digests differ is
/// the flipped one. The flipped weight is the one whose factor explains the whole difference: of 2^64 differences only
/// two per weight are of this kind.
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
    // With two candidates it is unknown which weight is wrong.
    first.filter(|_| found.next().is_none())
}

impl Add for Digest {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }
}

impl Sub for Digest {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.wrapping_sub(other.0))
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
