//! The quantiser: adds updates to the residual, and what has grown past τ leaves as changes.
//!
//! One pass, bound by memory: update read, residual read and written. Changes are rare, so sixteen weights at a time
//! are only asked whether any of them is due, and the answer is nearly always no. All arithmetic is single `f32`
//! additions and comparisons, so every instruction set gives the same bits.

use multiversion::multiversion;
use protocol::changes::word;
use protocol::lattice::{BATCH_STEPS_MAX, Tau};

/// Weights looked at together: the width of the widest vector registers.
const LANES: usize = 16;
/// How often one weight can change in one batch. A weight further behind than this catches up over several batches.
pub const REPEATS_MAX: u32 = 8;

/// An update was infinite or no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite;

/// `residual += update`; where it is then at least τ or at most −τ, changes are appended to `words` and taken from the
/// residual. The first weight has index `offset`.
///
/// Allocates nothing while `words` has room. When `words` holds `words_max`, nothing more leaves: the rest stays in
/// the residual.
///
/// # Panics
/// If the slices differ in length.
pub fn quantise(
    update: &[f32],
    residual: &mut [f32],
    tau: Tau,
    offset: usize,
    words_max: usize,
    words: &mut Vec<u32>,
) -> Result<(), NotFinite> {
    assert_eq!(update.len(), residual.len());
    let limits = Limits {
        tau: tau.value(),
        repeats: REPEATS_MAX.min((BATCH_STEPS_MAX - 1) / tau.steps()),
        words_max,
    };
    quantise_lanes(update, residual, limits, offset, words)
}

#[derive(Clone, Copy)]
struct Limits {
    tau: f32,
    repeats: u32,
    words_max: usize,
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn quantise_lanes(
    update: &[f32],
    residual: &mut [f32],
    limits: Limits,
    offset: usize,
    words: &mut Vec<u32>,
) -> Result<(), NotFinite> {
    let (updates, last_updates) = update.as_chunks::<LANES>();
    let (residuals, last_residuals) = residual.as_chunks_mut::<LANES>();
    let mut index = offset;
    for (update, residual) in updates.iter().zip(residuals) {
        let mut quiet = true;
        for (r, u) in residual.iter_mut().zip(update) {
            *r += u;
            // False for what is no number too, so that it is found at no cost.
            quiet &= r.abs() < limits.tau;
        }
        if !quiet {
            emit(residual, limits, index, words)?;
        }
        index += LANES;
    }
    for (r, u) in last_residuals.iter_mut().zip(last_updates) {
        *r += u;
    }
    emit(last_residuals, limits, index, words)
}

/// Lets changes leave a few residuals, in the order of their indices.
#[cold]
fn emit(residual: &mut [f32], limits: Limits, offset: usize, words: &mut Vec<u32>) -> Result<(), NotFinite> {
    for (index, r) in (offset..).zip(residual) {
        if !r.is_finite() {
            return Err(NotFinite);
        }
        let plus = *r > 0.0;
        let step = if plus { limits.tau } else { -limits.tau };
        let mut repeats = 0;
        while r.abs() >= limits.tau && repeats < limits.repeats && words.len() < limits.words_max {
            *r -= step;
            words.push(word(index as u32, plus));
            repeats += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::changes;

    use super::*;

    /// The definition, one weight at a time.
    fn plain(update: &[f32], residual: &mut [f32], tau: Tau) -> Vec<u32> {
        let mut words = Vec::new();
        let most = REPEATS_MAX.min((BATCH_STEPS_MAX - 1) / tau.steps());
        let tau = tau.value();
        for (index, (u, r)) in update.iter().zip(residual).enumerate() {
            *r += u;
            let mut repeats = 0;
            while *r >= tau && repeats < most {
                *r -= tau;
                words.push(word(index as u32, true));
                repeats += 1;
            }
            while *r <= -tau && repeats < most {
                *r += tau;
                words.push(word(index as u32, false));
                repeats += 1;
            }
        }
        words
    }

    fn numbers(len: usize) -> impl Strategy<Value = Vec<f32>> {
        proptest::collection::vec(-40.0f32..40.0, len)
    }

    proptest! {
        #[test]
        fn the_vector_pass_is_the_definition_to_the_bit(
            (update, residual) in (0..100usize).prop_flat_map(|len| (numbers(len), numbers(len))),
            steps in prop_oneof![1..2_000u32, 1..1u32 << 24],
        ) {
            let tau = Tau::from_steps(steps).unwrap();
            let (mut fast, mut slow) = (residual.clone(), residual);
            let mut words = Vec::new();
            quantise(&update, &mut fast, tau, 0, usize::MAX, &mut words).unwrap();
            prop_assert_eq!(&words, &plain(&update, &mut slow, tau));
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
            quantise(&update, &mut residual, Tau::nearest(0.25), 100, usize::MAX, &mut words).unwrap();
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
    fn what_is_no_number_is_reported() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (len, at) in [(40, 3), (40, 39), (7, 6)] {
                let mut update = vec![0.0; len];
                update[at] = bad;
                let mut words = Vec::new();
                let result = quantise(&update, &mut vec![0.0; len], Tau::ONE_STEP, 0, usize::MAX, &mut words);
                assert_eq!(result, Err(NotFinite), "{bad} at {at} of {len}");
                assert!(words.is_empty());
            }
        }
    }

    #[test]
    fn a_full_batch_emits_no_more() {
        let mut words = vec![0; 20];
        let mut residual = vec![0.0; 10];
        quantise(&[1.0; 10], &mut residual, Tau::nearest(1.0), 50, 23, &mut words).unwrap();
        assert_eq!(words.len(), 23);
        assert_eq!(residual, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    }
}
