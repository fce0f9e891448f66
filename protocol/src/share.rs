//! The part of its difference that a worker lets out in a round.

use serde::{Deserialize, Serialize};

/// The part of its difference that a worker lets out, in parts of 2³².
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "u64")]
pub struct Share(u64);

impl Share {
    /// All of it.
    pub const ALL: Self = Self(1 << 32);
    /// None of it.
    pub const NOTHING: Self = Self(0);

    /// That of one of so many workers whose mean counts.
    #[must_use]
    pub fn of_one_in(workers: u32) -> Self {
        let workers = u64::from(workers.max(1));
        Self((Self::ALL.0 + workers / 2) / workers)
    }

    /// The nearest one to a fraction; what is no number is nothing.
    #[must_use]
    pub fn nearest(fraction: f64) -> Self {
        Self::from((fraction * Self::ALL.0 as f64).round() as u64)
    }

    /// The same, but no less than so small a part of another.
    #[must_use]
    pub fn at_least(self, part: u64, of: Self) -> Self {
        self.max(Self(of.0 / part))
    }

    /// The share of a number of steps.
    #[inline]
    #[must_use]
    pub fn of(self, steps: i32) -> i32 {
        ((i64::from(steps) * self.0 as i64 + (1 << 31)) >> 32) as i32
    }

    /// How many steps there are to one of the share.
    #[must_use]
    pub fn inverse(self) -> f64 {
        Self::ALL.0 as f64 / self.0 as f64
    }
}

/// More than all is all.
impl From<u64> for Share {
    fn from(parts: u64) -> Self {
        Self(parts.min(Self::ALL.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_all_workers_add_up_but_for_their_rounding() {
        for workers in [1, 2, 3, 7, 10] {
            let share = Share::of_one_in(workers);
            for steps in [0, 1, -1, 2, -5, 6, 1000, -999, 1 << 23, -(1 << 23)] {
                let part = share.of(steps);
                let rest = (part * workers as i32 - steps).abs();
                assert!(rest <= workers.midpoint(1) as i32, "{steps} among {workers}: {part}");
            }
        }
        assert_eq!(Share::of_one_in(1), Share::ALL);
        assert_eq!(Share::ALL.of(-12_345), -12_345);
    }

    #[test]
    fn no_text_or_byte_makes_a_share_of_more_than_all() {
        let bytes = postcard::to_stdvec(&u64::MAX).unwrap();
        assert_eq!(postcard::from_bytes::<Share>(&bytes).unwrap(), Share::ALL);
        assert_eq!(Share::nearest(7.0), Share::ALL);
        assert_eq!(Share::nearest(f64::NAN), Share::NOTHING);
        assert_eq!(Share::nearest(-1.0), Share::NOTHING);
        assert_eq!(Share::nearest(1.0 / 3.0), Share::of_one_in(3));
        assert_eq!(Share::NOTHING.at_least(2, Share::ALL), Share::of_one_in(2));
    }
}
