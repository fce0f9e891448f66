//! The contribution of a worker to a round, as a factor on the difference that it has learned.

use serde::{Deserialize, Serialize};

/// Contribution of a worker to a round: the part of its difference from the shared weights that it emits, in units of
/// 2⁻³².
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "u64")]
pub struct Contribution(u64);

impl Contribution {
    /// Contribution to a round: the worker sends the whole difference of its own weights from the shared ones.
    pub const ALL: Self = Self(1 << 32);
    /// Contribution to a round: the worker sends nothing of the difference of its own weights from the shared ones.
    pub const NOTHING: Self = Self(0);

    /// Returns an equal share: the contribution of each of `workers` workers whose differences are to be averaged.
    #[must_use]
    pub fn of_one_in(workers: u32) -> Self {
        let workers = u64::from(workers.max(1));
        Self((Self::ALL.0 + workers / 2) / workers)
    }

    /// Returns the contribution that is nearest to this fraction of the worker's difference: the whole for more than 1,
    /// and nothing for less than 0 or NaN.
    #[must_use]
    pub fn nearest(fraction: f64) -> Self {
        Self::from((fraction * Self::ALL.0 as f64).round() as u64)
    }

    /// Returns the larger of this contribution and a part of another one: `of` divided by `part`. It keeps the
    /// contribution of a worker from becoming too small.
    #[must_use]
    pub fn at_least(self, part: u64, of: Self) -> Self {
        self.max(Self(of.0 / part))
    }

    /// Returns the contribution as a fraction of the worker's difference, from 0 to 1.
    #[must_use]
    pub fn fraction(self) -> f64 {
        self.0 as f64 / Self::ALL.0 as f64
    }

    /// Returns one divided by the contribution's fraction: the factor that turns the emitted part of the worker's
    /// difference back into the whole.
    #[must_use]
    pub fn inverse(self) -> f64 {
        Self::ALL.0 as f64 / self.0 as f64
    }
}

/// Reads a contribution (the share of a worker's difference that it emits in a round) from its number of units of
/// 2⁻³². A number above 2³² counts as the whole difference.
impl From<u64> for Contribution {
    fn from(parts: u64) -> Self {
        Self(parts.min(Self::ALL.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contributions_add_up_to_all() {
        for workers in [1, 2, 3, 7, 10, 1000] {
            let contribution = Contribution::of_one_in(workers);
            assert!((contribution.fraction() * f64::from(workers) - 1.0).abs() < 1e-6);
            assert!((contribution.inverse() - f64::from(workers)).abs() < 1e-3);
        }
        assert_eq!(Contribution::of_one_in(1), Contribution::ALL);
        assert_eq!(Contribution::NOTHING.fraction(), 0.0);
    }

    #[test]
    fn no_text_or_byte_makes_a_contribution_of_more_than_all() {
        let bytes = postcard::to_stdvec(&u64::MAX).unwrap();
        assert_eq!(postcard::from_bytes::<Contribution>(&bytes).unwrap(), Contribution::ALL);
        assert_eq!(Contribution::nearest(7.0), Contribution::ALL);
        assert_eq!(Contribution::nearest(f64::NAN), Contribution::NOTHING);
        assert_eq!(Contribution::nearest(-1.0), Contribution::NOTHING);
        assert_eq!(Contribution::nearest(1.0 / 3.0), Contribution::of_one_in(3));
        assert_eq!(
            Contribution::NOTHING.at_least(2, Contribution::ALL),
            Contribution::of_one_in(2)
        );
    }
}
