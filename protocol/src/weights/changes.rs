//! Changes: moves of single weights by plus or minus τ. A change is encoded as the `u32` `index << 1 | plus`; a batch
//! holds changes sorted.
//!
//! A weight may move several times in one batch (its change repeats), always in one direction. Sorted changes with one
//! direction per weight have exactly one representation, which every encoding preserves.

use thiserror::Error;

use crate::weights::lattice::{BATCH_STEPS_MAX, Range, RangeError, Tau};

/// Most changes in a batch, chosen so that the decoded changes fit into one frame of 16 MiB.
pub const CHANGES_MAX: usize = 1 << 22;
/// Most weights of a model: an index and a sign bit share a `u32`.
pub const WEIGHTS_MAX: usize = 1 << 31;

/// Encodes one weight change as a number: the weight `index` moves by plus or minus τ.
#[must_use]
pub const fn change(index: u32, plus: bool) -> u32 {
    index << 1 | plus as u32
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChangesError {
    /// Reason why a batch's changes are refused: one names a weight that the model does not have.
    #[error("a change names weight {index}, but the model has {weights} weights")]
    IndexOutOfRange {
        /// Index of the weight that the refused change names.
        index: u64,
        weights: usize,
    },
    /// Reason why a batch's changes are refused: they are not sorted.
    #[error("the changes are not sorted by weight")]
    Unsorted,
    /// Reason why a batch's changes are refused: a weight moves both up and down.
    #[error("weight {0} moves both up and down in one batch")]
    MixedSigns(u32),
    /// Reason why a batch's changes are refused: a weight moves further than a batch may move it.
    #[error("weight {0} moves by 2^24 or more lattice steps in one batch")]
    MovesTooFar(u32),
    /// Reason why a batch's changes are refused: there are more than a batch may carry.
    #[error("a batch holds {0} changes, but at most {CHANGES_MAX} are allowed")]
    TooMany(usize),
}

/// Checks all conditions that changes must meet before they are applied to a replica of `weights` weights: they are
/// sorted and not too many, name weights that exist, and move each weight in one direction and not too far.
pub fn check(changes: &[u32], weights: usize, tau: Tau) -> Result<(), ChangesError> {
    if changes.len() > CHANGES_MAX {
        return Err(ChangesError::TooMany(changes.len()));
    }
    let Some(&last) = changes.last() else {
        return Ok(());
    };
    // One pass without early exits, which the compiler vectorises. The kind of fault is determined only if there is
    // one.
    let faults = changes
        .windows(2)
        .filter(|pair| pair[0] > pair[1] || pair[0] ^ pair[1] == 1)
        .count();
    if faults > 0 {
        for pair in changes.windows(2) {
            if pair[0] ^ pair[1] == 1 {
                return Err(ChangesError::MixedSigns(pair[0] >> 1));
            }
            if pair[0] > pair[1] {
                return Err(ChangesError::Unsorted);
            }
        }
    }
    if (last >> 1) as usize >= weights {
        return Err(ChangesError::IndexOutOfRange {
            index: u64::from(last >> 1),
            weights,
        });
    }
    // Equal changes are neighbours, so a run of `reach` equal changes shows as two equal changes at that distance.
    let reach = BATCH_STEPS_MAX.div_ceil(tau.steps()) as usize;
    if let Some(far) = changes
        .get(reach - 1..)
        .and_then(|later| changes.iter().zip(later).find(|(early, late)| early == late))
    {
        return Err(ChangesError::MovesTooFar(far.0 >> 1));
    }
    Ok(())
}

/// True if a weight occurs more than once in a list of changes, which one encoding cannot hold.
#[must_use]
pub fn has_repeats(changes: &[u32]) -> bool {
    changes.windows(2).any(|pair| pair[0] == pair[1])
}

/// Number of weight changes by which a prefetch into the cache runs ahead. Changes are thousands of weights apart, so
/// each of them misses the cache, and only many cache misses at once keep memory busy.
const PREFETCH_AHEAD: usize = 24;

#[inline(always)]
fn prefetch<T>(items: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint that never faults, and `wrapping_add` makes no claim about the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(items.as_ptr().wrapping_add(index).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (items, index);
}

/// Moves the weights in `items`: calls `move_by` with index and sign of one change after another, and returns the
/// largest magnitude that it returned. `fetch` prefetches a weight that will be moved soon.
#[inline(always)]
fn scatter<I: ?Sized>(
    changes: &[u32],
    items: &mut I,
    fetch: impl Fn(&I, usize),
    mut move_by: impl FnMut(&mut I, usize, u32) -> u32,
) -> u32 {
    let mut largest = 0;
    for (position, &change) in changes.iter().enumerate() {
        if let Some(&ahead) = changes.get(position + PREFETCH_AHEAD) {
            fetch(items, (ahead >> 1) as usize);
        }
        largest = largest.max(move_by(items, (change >> 1) as usize, change & 1));
    }
    largest
}

/// Returns plus τ if the lowest bit of a change (`plus`) is 1, else minus τ. It has no branch.
#[inline(always)]
fn signed_tau(tau: Tau, plus: u32) -> f32 {
    f32::from_bits(tau.value().to_bits() | (plus ^ 1) << 31)
}

/// Returns the bits of a weight's magnitude. They compare as the magnitudes do, so the largest is found without
/// branches.
#[inline(always)]
fn magnitude_bits(weight: f32) -> u32 {
    weight.to_bits() & 0x7fff_ffff
}

/// Checks that a replica would stay within ±16 if these changes of plus or minus τ were applied. Applies nothing.
///
/// # Panics
/// If an index is not below `weights.len()`: call [`check`] first.
pub fn check_range(changes: &[u32], tau: Tau, weights: &[f32]) -> Result<(), RangeError> {
    let mut largest = 0.0f32;
    for same in changes.chunk_by(|one, other| one >> 1 == other >> 1) {
        let moved = weights[(same[0] >> 1) as usize] + signed_tau(tau, same[0] & 1) * same.len() as f32;
        largest = largest.max(moved.abs());
    }
    Range::of_weight(largest).map(drop)
}

/// Adds checked changes of plus or minus τ to a replica held as floats, which remain multiples of the smallest step
/// that weights can make.
///
/// # Panics
/// If an index is not below `weights.len()`: call [`check`] first.
pub fn apply_to_weights(changes: &[u32], tau: Tau, weights: &mut [f32]) -> Result<Range, RangeError> {
    let largest = scatter(changes, weights, prefetch, |weights, index, plus| {
        weights[index] += signed_tau(tau, plus);
        magnitude_bits(weights[index])
    });
    Range::of_weight(f32::from_bits(largest))
}

/// Adds checked changes to the shared copy `weights` of a worker and to its own copy, whose weights need not be
/// multiples of the smallest step or within ±16. A single pass over both keeps twice as many cache misses in flight.
///
/// # Panics
/// If an index is not below the length of either copy: call [`check`] first.
pub fn apply_to_both(changes: &[u32], tau: Tau, weights: &mut [f32], own: &mut [f32]) -> Result<Range, RangeError> {
    let fetch = |(weights, own): &(&mut [f32], &mut [f32]), index| {
        prefetch(weights, index);
        prefetch(own, index);
    };
    let largest = scatter(changes, &mut (weights, own), fetch, |(weights, own), index, plus| {
        weights[index] += signed_tau(tau, plus);
        own[index] += signed_tau(tau, plus);
        magnitude_bits(weights[index])
    });
    Range::of_weight(f32::from_bits(largest))
}

/// Adds checked changes of plus or minus τ to a replica held as counts (weights as whole multiples of the smallest
/// step).
///
/// # Panics
/// If an index is not below `counts.len()`: call [`check`] first.
pub fn apply_to_counts(changes: &[u32], tau: Tau, counts: &mut [i32]) -> Result<Range, RangeError> {
    let steps = tau.steps() as i32;
    let largest = scatter(changes, counts, prefetch, |counts, index, plus| {
        counts[index] += if plus == 1 { steps } else { -steps };
        counts[index].unsigned_abs()
    });
    Range::of_steps(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tau(steps: u32) -> Tau {
        Tau::from_steps(steps).unwrap()
    }

    #[test]
    fn valid_changes_pass() {
        assert_eq!(check(&[], 0, tau(1)), Ok(()));
        assert_eq!(
            check(&[change(0, true), change(0, true), change(9, false)], 10, tau(1)),
            Ok(())
        );
    }

    #[test]
    fn a_range_is_checked_before_anything_moves() {
        let weights = [15.5, -15.5, 0.0];
        let quarter = Tau::nearest(0.25);
        let within = [change(0, true), change(1, false), change(2, true)];
        assert_eq!(check_range(&within, quarter, &weights), Ok(()));
        let beyond = [change(0, true), change(0, true), change(2, true)];
        assert_eq!(check_range(&beyond, quarter, &weights), Err(RangeError));
        assert_eq!(
            check_range(&[change(1, false)], Tau::nearest(0.75), &weights),
            Err(RangeError)
        );
        assert_eq!(check_range(&[], quarter, &weights), Ok(()));
    }

    #[test]
    fn each_fault_is_named() {
        assert_eq!(
            check(&[change(10, true)], 10, tau(1)),
            Err(ChangesError::IndexOutOfRange { index: 10, weights: 10 })
        );
        assert_eq!(
            check(&[change(2, true), change(1, true)], 10, tau(1)),
            Err(ChangesError::Unsorted)
        );
        assert_eq!(
            check(&[change(1, false), change(1, true)], 10, tau(1)),
            Err(ChangesError::MixedSigns(1))
        );
        assert_eq!(
            check(&[change(1, true), change(1, false)], 10, tau(1)),
            Err(ChangesError::MixedSigns(1))
        );
        let far = [change(3, true); 2];
        assert_eq!(check(&far, 10, tau((1 << 23) - 1)), Ok(()));
        assert_eq!(check(&far, 10, tau(1 << 23)), Err(ChangesError::MovesTooFar(3)));
        let many = vec![change(1, true); CHANGES_MAX + 1];
        assert_eq!(check(&many, 10, tau(1)), Err(ChangesError::TooMany(CHANGES_MAX + 1)));
    }

    #[test]
    fn both_replicas_move_alike() {
        let changes = [change(0, true), change(2, false), change(2, false)];
        let mut counts = [1, 2, 3];
        let mut weights = counts.map(crate::weights::lattice::weight_of);
        assert_eq!(apply_to_counts(&changes, tau(4), &mut counts), Ok(Range::Safe));
        assert_eq!(apply_to_weights(&changes, tau(4), &mut weights), Ok(Range::Safe));
        assert_eq!(counts, [5, 2, -5]);
        assert_eq!(weights, counts.map(crate::weights::lattice::weight_of));
    }

    #[test]
    fn leaving_the_range_is_told_by_both() {
        let start = crate::weights::lattice::RANGE_ERROR_STEPS - 2;
        for (steps, expected) in [(1, Ok(Range::Alarm)), (2, Err(RangeError)), (3, Err(RangeError))] {
            for plus in [true, false] {
                let mut counts = [if plus { start } else { -start }];
                let mut weights = counts.map(crate::weights::lattice::weight_of);
                let changes = [change(0, plus)];
                assert_eq!(apply_to_counts(&changes, tau(steps), &mut counts), expected);
                assert_eq!(apply_to_weights(&changes, tau(steps), &mut weights), expected);
            }
        }
    }
}
