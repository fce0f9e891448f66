//! The quantiser: emits changes where a worker's own weights differ from the shared ones by τ or more.
//!
//! The difference is the residual: it is not stored, and a part that does not leave now is still there the next time.
//! The quantiser is one pass that only reads and is bound by memory. Changes are rare, so it first tests sixteen
//! weights at a time for any change. All arithmetic is single `f32` subtractions and comparisons, so every instruction
//! set gives the same bits.

use std::borrow::Cow;

use multiversion::multiversion;
use protocol::weights::changes::change;
use protocol::weights::lattice::{BATCH_STEPS_MAX, Tau};

/// Number of weights that are tested together: the width of the widest vector registers.
const LANES: usize = 16;
/// Largest number of changes of one weight in one batch. A weight further behind than this catches up over several
/// batches.
pub const REPEATS_MAX: u32 = 8;

/// Returns the largest number of changes of ±τ that one weight may have in one batch: fewer where it would move further
/// than a batch can encode.
#[must_use]
pub fn repeats_max(tau: Tau) -> u32 {
    REPEATS_MAX.min((BATCH_STEPS_MAX - 1) / tau.steps())
}

/// Error: a weight is infinite or not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite;

/// Values that a worker's own weights have reached. The stored weights may differ from these: they may look ahead along
/// their velocity.
#[derive(Clone, Copy, Debug)]
pub struct Reached<'a> {
    own: &'a [f32],
    velocity: &'a [f32],
    ahead: f32,
}

impl<'a> Reached<'a> {
    /// Makes the values of weights that do not look ahead along their velocity: these are the stored weights
    /// themselves.
    #[must_use]
    pub fn exactly(own: &'a [f32]) -> Self {
        Self {
            own,
            velocity: own,
            ahead: 0.0,
        }
    }

    /// Computes the values of weights that look ahead by this multiple of their velocity. If `ahead` is zero, the
    /// velocity is not used.
    ///
    /// # Panics
    /// If they look ahead and the slices differ in length.
    #[must_use]
    pub fn new(own: &'a [f32], ahead: f32, velocity: &'a [f32]) -> Self {
        if ahead == 0.0 {
            return Self::exactly(own);
        }
        assert_eq!(own.len(), velocity.len());
        Self { own, velocity, ahead }
    }

    /// Returns the values that all weights have reached, without the look-ahead.
    #[must_use]
    pub fn values(&self) -> Cow<'a, [f32]> {
        if self.ahead == 0.0 {
            Cow::Borrowed(self.own)
        } else {
            (0..self.own.len()).map(|index| self.at(index)).collect()
        }
    }

    /// Returns the value that one weight has reached, without the look-ahead.
    #[must_use]
    pub fn at(&self, index: usize) -> f32 {
        self.own[index] + self.ahead * self.velocity[index]
    }
}

/// Appends to `changes` the changes of ±τ that bring the shared weights to within τ of a worker's own weights. The
/// first weight has index `offset`.
///
/// Allocates nothing while `changes` has room. When `changes` holds `changes_max`, nothing more leaves.
///
/// # Panics
/// If the slices differ in length.
pub fn quantise(
    own: Reached<'_>,
    shared: &[f32],
    tau: Tau,
    offset: usize,
    changes_max: usize,
    changes: &mut Vec<u32>,
) -> Result<(), NotFinite> {
    assert_eq!(own.own.len(), shared.len());
    let limits = Limits {
        tau: tau.value(),
        repeats: repeats_max(tau),
        changes_max,
    };
    quantise_lanes(own, shared, limits, offset, changes)
}

#[derive(Clone, Copy)]
struct Limits {
    tau: f32,
    repeats: u32,
    changes_max: usize,
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn quantise_lanes(
    Reached { own, velocity, ahead }: Reached<'_>,
    shared: &[f32],
    limits: Limits,
    offset: usize,
    changes: &mut Vec<u32>,
) -> Result<(), NotFinite> {
    let (own_lanes, own_rest) = own.as_chunks::<LANES>();
    let (velocity_lanes, velocity_rest) = velocity.as_chunks::<LANES>();
    let (shared_lanes, shared_rest) = shared.as_chunks::<LANES>();
    let tau_bits = magnitude_bits(limits.tau);
    let mut index = offset;
    for ((own, velocity), shared) in own_lanes.iter().zip(velocity_lanes).zip(shared_lanes) {
        let residual: [f32; LANES] = std::array::from_fn(|lane| own[lane] + ahead * velocity[lane] - shared[lane]);
        let largest = residual.iter().fold(0, |largest, &r| magnitude_bits(r).max(largest));
        if largest >= tau_bits {
            emit_lanes(&residual, limits, index, changes)?;
        }
        index += LANES;
    }
    for (lane, (own, velocity)) in own_rest.iter().zip(velocity_rest).enumerate() {
        emit(
            own + ahead * velocity - shared_rest[lane],
            limits,
            index + lane,
            changes,
        )?;
    }
    Ok(())
}

/// Appends the changes of ±τ of sixteen weights, at least one of which has a residual of τ or more. A separate function
/// keeps the loop that calls it small.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn emit_lanes(residual: &[f32; LANES], limits: Limits, index: usize, changes: &mut Vec<u32>) -> Result<(), NotFinite> {
    let tau_bits = magnitude_bits(limits.tau);
    // One byte per weight, from which the compiler makes vector code.
    let due: [u8; LANES] = std::array::from_fn(|lane| u8::from(magnitude_bits(residual[lane]) >= tau_bits));
    let mut due = u128::from_le_bytes(due);
    while due != 0 {
        let lane = due.trailing_zeros() as usize / 8;
        due &= due - 1;
        emit(residual[lane], limits, index + lane, changes)?;
    }
    Ok(())
}

/// Returns a number's magnitude as an integer: the larger the magnitude, the larger the integer, so that integers can
/// be compared instead. NaN is larger than all numbers.
#[inline(always)]
fn magnitude_bits(number: f32) -> i32 {
    (number.to_bits() & 0x7fff_ffff) as i32
}

/// Appends the ±τ changes of one weight, if its residual is large enough.
#[inline(always)]
fn emit(residual: f32, limits: Limits, index: usize, changes: &mut Vec<u32>) -> Result<(), NotFinite> {
    if !residual.is_finite() {
        return Err(NotFinite);
    }
    let mut size = residual.abs();
    let mut repeats = 0;
    while size >= limits.tau && repeats < limits.repeats && changes.len() < limits.changes_max {
        size -= limits.tau;
        changes.push(change(index as u32, residual > 0.0));
        repeats += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::weights::changes::{self, apply_to_weights};

    use super::*;

    /// Reference implementation of the quantiser for tests: returns the ±τ changes, computed one weight at a time.
    fn plain(own: &[f32], shared: &[f32], tau: Tau) -> Vec<u32> {
        let mut changes = Vec::new();
        let most = REPEATS_MAX.min((BATCH_STEPS_MAX - 1) / tau.steps());
        let tau = tau.value();
        for (index, (own, shared)) in own.iter().zip(shared).enumerate() {
            let mut residual = own - shared;
            let mut repeats = 0;
            while residual >= tau && repeats < most {
                residual -= tau;
                changes.push(change(index as u32, true));
                repeats += 1;
            }
            while residual <= -tau && repeats < most {
                residual += tau;
                changes.push(change(index as u32, false));
                repeats += 1;
            }
        }
        changes
    }

    fn numbers(len: usize) -> impl Strategy<Value = Vec<f32>> {
        proptest::collection::vec(-15.0f32..15.0, len)
    }

    proptest! {
        #[test]
        fn the_vector_pass_is_the_definition(
            (own, shared) in (0..100usize).prop_flat_map(|len| (numbers(len), numbers(len))),
            steps in prop_oneof![1..2_000u32, 1..1u32 << 24],
        ) {
            let tau = Tau::from_steps(steps).unwrap();
            let mut changes = Vec::new();
            quantise(Reached::exactly(&own), &shared, tau, 0, usize::MAX, &mut changes).unwrap();
            prop_assert_eq!(&changes, &plain(&own, &shared, tau));
            prop_assert_eq!(changes::check(&changes, own.len(), tau), Ok(()));
        }
    }

    #[test]
    fn nothing_is_lost() {
        // However updates came and in however many batches they left, the shared weights end within τ of the own ones.
        let tau = Tau::nearest(0.25);
        let mut own = vec![0.0f32; 33];
        let mut shared = own.clone();
        let mut changes = Vec::new();
        for _ in 0..10 {
            for (i, own) in own.iter_mut().enumerate() {
                *own += (i as f32 - 16.0) / 20.0;
            }
            changes.clear();
            quantise(Reached::exactly(&own), &shared, tau, 0, usize::MAX, &mut changes).unwrap();
            apply_to_weights(&changes, tau, &mut shared).unwrap();
            assert!(own.iter().zip(&shared).all(|(own, shared)| (own - shared).abs() < 0.25));
        }
        assert!(shared[32] > 7.0);
    }

    #[test]
    fn what_leaves_is_what_weights_have_come_to() {
        let own = [0.5; 20];
        let velocity: Vec<f32> = (0..20).map(|i| i as f32 - 10.0).collect();
        let mut changes = Vec::new();
        let reached = Reached::new(&own, 0.25, &velocity);
        quantise(reached, &[0.5; 20], Tau::nearest(1.0), 0, usize::MAX, &mut changes).unwrap();
        let mut expected = Vec::new();
        for (index, velocity) in (0..).zip(&velocity) {
            let times = (velocity.abs() * 0.25).floor() as usize;
            expected.extend(vec![change(index, *velocity > 0.0); times]);
        }
        assert_eq!(changes, expected);
    }

    #[test]
    fn what_is_no_number_is_reported() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (len, at) in [(40, 3), (40, 39), (7, 6)] {
                let mut own = vec![0.0; len];
                own[at] = bad;
                let mut changes = Vec::new();
                let result = quantise(
                    Reached::exactly(&own),
                    &vec![0.0; len],
                    Tau::ONE_STEP,
                    0,
                    usize::MAX,
                    &mut changes,
                );
                assert_eq!(result, Err(NotFinite), "{bad} at {at} of {len}");
                assert!(changes.is_empty());
            }
        }
    }

    #[test]
    fn a_full_batch_emits_no_more() {
        let mut changes = vec![0; 20];
        quantise(
            Reached::exactly(&[1.0; 10]),
            &[0.0; 10],
            Tau::nearest(1.0),
            50,
            23,
            &mut changes,
        )
        .unwrap();
        assert_eq!(changes[20..], [change(50, true), change(51, true), change(52, true)]);
    }
}
