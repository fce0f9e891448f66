//! The quantiser: adds updates to the residual, and what has grown past τ leaves as changes.
//!
//! One pass, bound by memory: update read, residual read and written. Changes are rare, so sixteen weights at a time
//! are only asked whether any of them is due, and the answer is nearly always no. All arithmetic is single `f32`
//! additions and comparisons, so every instruction set gives the same bits.

use multiversion::multiversion;
use protocol::changes::{CHANGES_MAX, word};

/// Weights looked at together: the width of the widest vector registers.
const LANES: usize = 16;
/// How often one weight can change in one batch. A weight further behind than this catches up over several batches.
pub const REPEATS_MAX: usize = 8;

/// `residual += update`; where it is then at least `tau` or at most `-tau`, changes are appended to `words` and taken
/// from the residual. The first weight has index `offset`.
///
/// Allocates nothing while `words` has room. A full batch emits no more: the rest stays in the residual.
///
/// # Panics
/// If the slices differ in length, or `tau` is not above 0.
pub fn quantise(
    update: &[f32],
    residual: &mut [f32],
    tau: f32,
    offset: usize,
    words: &mut Vec<u32>,
) {
    assert_eq!(update.len(), residual.len());
    assert!(tau > 0.0, "τ must be above 0");
    quantise_lanes(update, residual, tau, offset, words);
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn quantise_lanes(
    update: &[f32],
    residual: &mut [f32],
    tau: f32,
    offset: usize,
    words: &mut Vec<u32>,
) {
    let (updates, last_updates) = update.as_chunks::<LANES>();
    let (residuals, last_residuals) = residual.as_chunks_mut::<LANES>();
    let mut index = offset;
    for (update, residual) in updates.iter().zip(residuals) {
        let mut due = false;
        for (r, u) in residual.iter_mut().zip(update) {
            *r += u;
            due |= r.abs() >= tau;
        }
        if due {
            emit(residual, tau, index, words);
        }
        index += LANES;
    }
    for (r, u) in last_residuals.iter_mut().zip(last_updates) {
        *r += u;
    }
    emit(last_residuals, tau, index, words);
}

/// Lets changes leave a few residuals, in the order of their indices.
#[cold]
fn emit(residual: &mut [f32], tau: f32, offset: usize, words: &mut Vec<u32>) {
    for (index, r) in (offset..).zip(residual) {
        let plus = *r > 0.0;
        let step = if plus { tau } else { -tau };
        let mut repeats = 0;
        while r.abs() >= tau && repeats < REPEATS_MAX && words.len() < CHANGES_MAX {
            *r -= step;
            words.push(word(index as u32, plus));
            repeats += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::changes;
    use protocol::lattice::Tau;

    use super::*;

    /// The definition, one weight at a time.
    fn plain(update: &[f32], residual: &mut [f32], tau: f32) -> Vec<u32> {
        let mut words = Vec::new();
        for (index, (u, r)) in update.iter().zip(residual).enumerate() {
            *r += u;
            let mut repeats = 0;
            while *r >= tau && repeats < REPEATS_MAX {
                *r -= tau;
                words.push(word(index as u32, true));
                repeats += 1;
            }
            while *r <= -tau && repeats < REPEATS_MAX {
                *r += tau;
                words.push(word(index as u32, false));
                repeats += 1;
            }
        }
        words
    }

    fn numbers(len: usize) -> impl Strategy<Value = Vec<f32>> {
        proptest::collection::vec(-1.0f32..1.0, len)
    }

    proptest! {
        #[test]
        fn the_vector_pass_is_the_definition_to_the_bit(
            (update, residual) in (0..100usize).prop_flat_map(|len| (numbers(len), numbers(len))),
            steps in 1..2_000_000u32,
        ) {
            let tau = Tau::from_steps(steps).unwrap();
            let (mut fast, mut slow) = (residual.clone(), residual);
            let mut words = Vec::new();
            quantise(&update, &mut fast, tau.value(), 0, &mut words);
            prop_assert_eq!(&words, &plain(&update, &mut slow, tau.value()));
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&fast), bits(&slow));
            prop_assert_eq!(changes::check(&words, update.len(), tau), Ok(()));
        }
    }

    #[test]
    fn nothing_is_lost() {
        // What left and what stayed is what came: the sum is kept, up to rounding.
        let tau = 0.25;
        let mut residual = vec![0.0f32; 33];
        let update: Vec<f32> = (0..33).map(|i| (i as f32 - 16.0) / 20.0).collect();
        let mut words = Vec::new();
        for _ in 0..10 {
            quantise(&update, &mut residual, tau, 100, &mut words);
        }
        for (at, (&r, &u)) in residual.iter().zip(&update).enumerate() {
            let index = 100 + at as u32;
            let count = |plus| words.iter().filter(|&&w| w == word(index, plus)).count() as f32;
            let left = (count(true) - count(false)) * tau;
            assert!((left + r - 10.0 * u).abs() < 1e-5);
            assert!(r.abs() < tau);
        }
    }

    #[test]
    fn nan_never_leaves() {
        let mut words = Vec::new();
        quantise(&[f32::NAN; 20], &mut [0.0; 20], 0.1, 0, &mut words);
        assert!(words.is_empty());
    }

    #[test]
    fn a_full_batch_emits_no_more() {
        let mut words = vec![0; CHANGES_MAX - 3];
        let mut residual = vec![0.0; 10];
        quantise(&[1.0; 10], &mut residual, 1.0, 50, &mut words);
        assert_eq!(words.len(), CHANGES_MAX);
        assert_eq!(residual, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    }
}
