//! The lattice: every weight is an integer count of lattice steps, so adding changes is exact and their order does not
//! matter.
//!
//! A weight is `count as f32 * LATTICE_STEP`. `f32` has 24 bits of mantissa, so while `|count| <= 2^24` (a weight
//! within ±16) the sum of two counts is the sum of the two floats, to the bit. A float replica and an integer replica
//! that have applied the same changes therefore agree, whatever the order of the changes.
//!
//! ```
//! use protocol::weights::lattice::{nearest_count, weight_of};
//!
//! let steps = [0.1, -0.7, 0.3].map(nearest_count);
//! let (one, other) = (steps[0] + steps[1] + steps[2], steps[2] + steps[0] + steps[1]);
//! assert_eq!(weight_of(one), weight_of(other));
//! // The same sums in f32 depend on their order, unless each summand lies on the lattice.
//! assert_ne!((0.1_f32 + -0.7) + 0.3, (0.3_f32 + 0.1) + -0.7);
//! let on_lattice = steps.map(weight_of);
//! assert_eq!((on_lattice[0] + on_lattice[1]) + on_lattice[2], weight_of(one));
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Number of smallest steps (see [`LATTICE_STEP`]) in a weight of 1: a power of two, so that scaling by it never
/// rounds.
pub const STEPS_PER_UNIT: i32 = 1 << 20;
/// Smallest step that a weight can make. Every weight is a whole multiple of it, so that sums of weights are exact.
pub const LATTICE_STEP: f32 = 1.0 / STEPS_PER_UNIT as f32;
/// Magnitude of a weight (±8), counted in smallest steps, above which people are warned: sums are exact only up to ±16.
pub const RANGE_ALARM_STEPS: i32 = 8 * STEPS_PER_UNIT;
/// Magnitude of a weight (±16), counted in smallest steps, at which `f32` stops holding every count: the run has
/// diverged and stops.
///
/// The border itself is outside the range: a float sum that leaves the range rounds to ±16 or beyond, never back
/// inside, so a replica of floats and a replica of counts give the same verdict.
pub const RANGE_ERROR_STEPS: i32 = 16 * STEPS_PER_UNIT;
/// Number of smallest steps below which a weight's move in one batch must stay, so that the count cannot overflow an
/// `i32` before its range is checked.
pub const BATCH_STEPS_MAX: u32 = 1 << 24;

/// Returns the count of the possible weight nearest to `value`: its whole number of smallest steps. Values beyond the
/// range of weights (±16) are clamped to it.
///
/// The count 0 stands for both zeros, so the weight −0.0 does not exist.
#[must_use]
pub fn nearest_count(value: f32) -> i32 {
    let steps = (value * STEPS_PER_UNIT as f32).round_ties_even();
    (steps as i32).clamp(1 - RANGE_ERROR_STEPS, RANGE_ERROR_STEPS - 1)
}

/// Returns the weight of a count, its whole number of smallest steps. It is exact for every weight within ±16.
#[must_use]
pub fn weight_of(count: i32) -> f32 {
    count as f32 * LATTICE_STEP
}

/// Returns the count of a weight, its whole number of smallest steps; `None` for a float that is no such multiple or is
/// beyond ±16.
#[must_use]
pub fn count_of(weight: f32) -> Option<i32> {
    let steps = weight * STEPS_PER_UNIT as f32;
    let count = steps as i32;
    let on_lattice = weight.to_bits() == weight_of(count).to_bits();
    (on_lattice && count.unsigned_abs() <= RANGE_ERROR_STEPS as u32).then_some(count)
}

/// τ, the distance by which one change moves a weight, as a whole number of the smallest steps that a weight can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Tau(u32);

impl Tau {
    /// Smallest τ (distance by which one change moves a weight): the smallest step that a weight can make.
    pub const ONE_STEP: Self = Self(1);
    /// Largest τ (distance by which one change moves a weight) that a batch may have.
    pub const MAX: Self = Self(BATCH_STEPS_MAX - 1);

    /// Creates a τ (distance by which one change moves a weight) of `steps` smallest steps; `None` outside `1..2^24`.
    #[must_use]
    pub const fn from_steps(steps: u32) -> Option<Self> {
        if steps >= 1 && steps < BATCH_STEPS_MAX {
            Some(Self(steps))
        } else {
            None
        }
    }

    /// Returns the possible τ that is nearest to a real number: a whole number of smallest steps, at least one.
    #[must_use]
    pub fn nearest(value: f64) -> Self {
        let steps = (value * f64::from(STEPS_PER_UNIT)).round_ties_even();
        Self(steps.clamp(1.0, f64::from(Self::MAX.0)) as u32)
    }

    #[must_use]
    pub fn steps(self) -> u32 {
        self.0
    }

    /// Returns τ, the distance by which one change moves a weight, as a float. The conversion is exact.
    #[must_use]
    pub fn value(self) -> f32 {
        self.0 as f32 * LATTICE_STEP
    }
}

impl TryFrom<u32> for Tau {
    type Error = &'static str;

    fn try_from(steps: u32) -> Result<Self, Self::Error> {
        Self::from_steps(steps).ok_or("τ must be between 1 and 2^24 - 1 lattice steps")
    }
}

impl From<Tau> for u32 {
    fn from(tau: Tau) -> Self {
        tau.0
    }
}

impl fmt::Display for Tau {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

/// Result of a check of a replica's largest weight: within ±8, or closer to the limit of ±16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Range {
    /// Result of the range check: all weights are within ±8.
    #[default]
    Safe,
    /// Result of the range check: a weight is beyond ±8. Sums are still exact, but the run is close to diverging.
    Alarm,
}

/// Error: a weight has reached ±16, where replicas no longer agree to the bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a weight reached ±16, where sums are no longer exact: the run has diverged")]
pub struct RangeError;

impl Range {
    /// Checks that a replica held as counts is within ±16, after a batch was applied. `largest` is the largest
    /// magnitude of a count, in smallest steps.
    pub fn of_steps(largest: u32) -> Result<Self, RangeError> {
        if largest >= RANGE_ERROR_STEPS as u32 {
            Err(RangeError)
        } else if largest > RANGE_ALARM_STEPS as u32 {
            Ok(Self::Alarm)
        } else {
            Ok(Self::Safe)
        }
    }

    /// Checks that a replica held as floats is within ±16. `largest` is the largest magnitude of a weight; NaN counts
    /// as divergence.
    pub fn of_weight(largest: f32) -> Result<Self, RangeError> {
        if largest <= weight_of(RANGE_ALARM_STEPS) {
            Ok(Self::Safe)
        } else if largest < weight_of(RANGE_ERROR_STEPS) {
            Ok(Self::Alarm)
        } else {
            Err(RangeError)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn minus_zero_does_not_exist() {
        for value in [0.0, -0.0, 1e-9, -1e-9, -LATTICE_STEP / 2.0] {
            assert_eq!(weight_of(nearest_count(value)).to_bits(), 0);
        }
        let step = LATTICE_STEP;
        assert_eq!((-step + step).to_bits(), 0);
    }

    #[test]
    fn the_range_has_two_borders() {
        assert_eq!(Range::of_steps(RANGE_ALARM_STEPS as u32), Ok(Range::Safe));
        assert_eq!(Range::of_steps(RANGE_ALARM_STEPS as u32 + 1), Ok(Range::Alarm));
        assert_eq!(Range::of_steps(RANGE_ERROR_STEPS as u32 - 1), Ok(Range::Alarm));
        assert_eq!(Range::of_steps(RANGE_ERROR_STEPS as u32), Err(RangeError));
        assert_eq!(Range::of_weight(8.0), Ok(Range::Safe));
        assert_eq!(Range::of_weight(8.0 + LATTICE_STEP), Ok(Range::Alarm));
        assert_eq!(Range::of_weight(16.0 - LATTICE_STEP), Ok(Range::Alarm));
        assert_eq!(Range::of_weight(16.0), Err(RangeError));
        assert_eq!(Range::of_weight(f32::NAN), Err(RangeError));
    }

    #[test]
    fn tau_keeps_to_its_range() {
        assert_eq!(Tau::nearest(0.0), Tau::ONE_STEP);
        assert_eq!(Tau::nearest(1e9), Tau::MAX);
        assert_eq!(Tau::from_steps(0), None);
        assert_eq!(Tau::from_steps(1 << 24), None);
        assert_eq!(Tau::nearest(0.5).value(), 0.5);
    }

    proptest! {
        #[test]
        fn counts_and_weights_are_one_to_one(count in 1 - RANGE_ERROR_STEPS..RANGE_ERROR_STEPS) {
            let weight = weight_of(count);
            prop_assert_eq!(count_of(weight), Some(count));
            prop_assert_eq!(nearest_count(weight), count);
        }

        #[test]
        fn adding_floats_is_adding_counts(
            count in -RANGE_ERROR_STEPS..=RANGE_ERROR_STEPS,
            steps in 1..BATCH_STEPS_MAX,
            plus: bool,
        ) {
            let moved = if plus { count + steps as i32 } else { count - steps as i32 };
            prop_assume!(moved.abs() <= RANGE_ERROR_STEPS);
            let tau = Tau::from_steps(steps).unwrap().value();
            let weight = weight_of(count) + if plus { tau } else { -tau };
            prop_assert_eq!(weight.to_bits(), weight_of(moved).to_bits());
        }

        #[test]
        fn a_float_off_the_lattice_has_no_count(count in -(1 << 22)..1 << 22) {
            prop_assert_eq!(count_of(weight_of(count) + LATTICE_STEP / 2.0), None);
        }
    }

    #[test]
    fn floats_beyond_the_lattice_have_no_count() {
        for value in [
            f32::NAN,
            f32::INFINITY,
            f32::MIN,
            f32::MAX,
            -0.0,
            16.0 + 2.0 * LATTICE_STEP,
            2048.0,
            -2048.0,
        ] {
            assert_eq!(count_of(value), None, "{value}");
        }
    }
}
