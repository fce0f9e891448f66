//! The digest: one word that two replicas share exactly when their weights are equal.
//!
//! `D = Σ h(i)·count_i mod 2^64` with `h(i) = splitmix64(i) | 1`. It is linear, so the digest of a replica after a
//! batch is the digest before plus the batch's own, whatever the order of batches; a replica can be checked against
//! the digest its frontier should have without asking anybody.

use std::fmt;
use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

use crate::lattice::{Tau, count_of};
use crate::rng::splitmix64;

/// The digest of a replica, or what a batch adds to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Digest(pub u64);

/// The factor of weight `index`. Odd, so that no count but 0 vanishes.
#[must_use]
pub const fn factor(index: u64) -> u64 {
    splitmix64(index) | 1
}

impl Digest {
    /// The digest of a replica held as grid counts.
    #[must_use]
    pub fn of_counts(counts: &[i32]) -> Self {
        let sum = (0u64..)
            .zip(counts)
            .map(|(index, &count)| factor(index).wrapping_mul(i64::from(count) as u64))
            .fold(0, u64::wrapping_add);
        Self(sum)
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

    /// What changes given as words (`index << 1 | plus`) of τ add to a digest.
    #[must_use]
    pub fn of_changes(words: &[u32], tau: Tau) -> Self {
        let steps = u64::from(tau.steps());
        let sum = words
            .iter()
            .map(|&word| {
                // All ones for minus, zero for plus: negation in two's complement without a branch.
                let minus = u64::from(word & 1).wrapping_sub(1);
                (factor(u64::from(word >> 1)) ^ minus).wrapping_sub(minus)
            })
            .fold(0, u64::wrapping_add);
        Self(sum.wrapping_mul(steps))
    }
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
    use crate::lattice::weight_of;

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
        let words = [(1 << 1) | 1, (1 << 1) | 1, 2 << 1];
        assert_eq!(
            before + Digest::of_changes(&words, tau),
            Digest::of_counts(&[10, 30, 25])
        );
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
