//! The frontier: the batches that a replica has applied, as the highest contiguous sequence of every origin.
//!
//! Batches of one origin apply in order, those of different origins in any order. Equal frontiers mean equal weights.
//!
//! ```
//! use protocol::ids::OriginId;
//! use protocol::log::frontier::{Frontier, Position, SequenceRange};
//!
//! let (mut mine, mut peers) = (Frontier::default(), Frontier::default());
//! mine.raise(OriginId(1), 5);
//! peers.raise(OriginId(1), 3);
//! assert_eq!(peers.position(OriginId(1), 4), Position::Next);
//! assert_eq!(peers.position(OriginId(1), 5), Position::Ahead { missing: 1 });
//! let lacking = SequenceRange { origin: OriginId(1), from: 3, to: 5 };
//! assert_eq!(peers.lacks(&mine), [lacking]);
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::OriginId;
use crate::rng::splitmix64;

/// Largest sequence number of a batch that is accepted. No worker reaches it: a thousand batches a second would take 35
/// years. The sum over all workers that fit into a message does not overflow.
pub const SEQUENCE_MAX: u64 = 1 << 40;

/// Position of a batch relative to the batches that a replica has applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Position of a batch: applied already, so it is dropped.
    Duplicate,
    /// Position of a batch: the next one of its worker, so it is applied.
    Next,
    /// Position of a batch: earlier batches of the same worker are missing and must be applied first.
    Ahead {
        /// Number of batches that are missing before this one.
        missing: u64,
    },
}

/// Range of one origin's batches: after `from`, up to and including `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceRange {
    /// Origin (one life of a worker) that emitted the batches of the range.
    pub origin: OriginId,
    /// Sequence number of the last batch before the range; 0 if the range begins with the first batch.
    pub from: u64,
    /// Sequence number of the last batch of the range.
    pub to: u64,
}

/// Frontier of a replica: for each origin (one life of a worker), the highest sequence number up to which the replica
/// has applied all batches. An origin that is not listed is at 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<OriginId, u64>")]
pub struct Frontier(BTreeMap<OriginId, u64>);

/// Makes a frontier from a map of sequence numbers. Origins at 0 are left out, so that equal frontiers have one form.
impl TryFrom<BTreeMap<OriginId, u64>> for Frontier {
    type Error = &'static str;

    fn try_from(mut applied: BTreeMap<OriginId, u64>) -> Result<Self, Self::Error> {
        applied.retain(|_, sequence| *sequence > 0);
        if applied.values().any(|&sequence| sequence > SEQUENCE_MAX) {
            return Err("a frontier has a sequence above the limit");
        }
        Ok(Self(applied))
    }
}

impl Frontier {
    /// Returns the sequence number up to which all batches of an origin (one life of a worker) were applied; 0 before
    /// the first.
    #[must_use]
    pub fn applied(&self, origin: OriginId) -> u64 {
        self.0.get(&origin).copied().unwrap_or(0)
    }

    /// Returns the position of a batch: applied already, next, or after a gap.
    #[must_use]
    pub fn position(&self, origin: OriginId, sequence: u64) -> Position {
        let applied = self.applied(origin);
        match sequence.checked_sub(applied) {
            None | Some(0) => Position::Duplicate,
            Some(1) => Position::Next,
            Some(ahead) => Position::Ahead { missing: ahead - 1 },
        }
    }

    /// Merges another frontier into this one: of each origin (one life of a worker) the higher sequence number counts.
    /// For a replica that has applied the batches of both frontiers.
    pub fn merge(&mut self, other: &Self) {
        for (origin, sequence) in other.iter() {
            self.raise(origin, sequence);
        }
    }

    /// Records that all batches of an origin (one life of a worker) up to `sequence` were applied. A lower number has
    /// no effect.
    pub fn raise(&mut self, origin: OriginId, sequence: u64) {
        if sequence > self.applied(origin) {
            self.0.insert(origin, sequence);
        }
    }

    /// Returns the batches that the replica of `other` has applied and the replica of this frontier lacks, as ranges to
    /// ask for.
    #[must_use]
    pub fn lacks(&self, other: &Self) -> Vec<SequenceRange> {
        other
            .iter()
            .map(|(origin, to)| SequenceRange {
                origin,
                from: self.applied(origin),
                to,
            })
            .filter(|range| range.to > range.from)
            .collect()
    }

    /// Returns the number of batches that the replica of `other` has applied and this one lacks.
    #[must_use]
    pub fn behind(&self, other: &Self) -> u64 {
        let lacking = self.lacks(other);
        lacking.iter().map(|range| range.to - range.from).sum()
    }

    /// Returns the frontier's fingerprint, one number for comparisons: equal for equal frontiers and, but for a chance
    /// of 2⁻⁶⁴, different for different ones.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.iter().fold(0, |sum, (origin, sequence)| {
            sum.wrapping_add(splitmix64(origin.0 ^ splitmix64(sequence)))
        })
    }

    /// Returns all origins (lives of workers) with at least one applied batch, in order, each with its sequence number.
    pub fn iter(&self) -> impl Iterator<Item = (OriginId, u64)> + '_ {
        self.0.iter().map(|(&origin, &sequence)| (origin, sequence))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frontier(sequences: &[(u64, u64)]) -> Frontier {
        Frontier(
            sequences
                .iter()
                .map(|&(origin, sequence)| (OriginId(origin), sequence))
                .collect(),
        )
    }

    fn any_frontier() -> impl Strategy<Value = Frontier> {
        proptest::collection::btree_map(0..6u64, 1..10u64, 0..6)
            .prop_map(|map| Frontier(map.into_iter().map(|(o, s)| (OriginId(o), s)).collect()))
    }

    #[test]
    fn batches_apply_in_turn_only() {
        let origin = OriginId(1);
        let mut frontier = Frontier::default();
        assert_eq!(frontier.position(origin, 1), Position::Next);
        assert_eq!(frontier.position(origin, 3), Position::Ahead { missing: 2 });
        frontier.raise(origin, 1);
        assert_eq!(frontier.position(origin, 1), Position::Duplicate);
        assert_eq!(frontier.position(origin, 0), Position::Duplicate);
    }

    #[test]
    fn origins_at_zero_are_not_carried() {
        let bytes = postcard::to_stdvec(&frontier(&[(1, 0), (2, 3)])).unwrap();
        assert_eq!(postcard::from_bytes::<Frontier>(&bytes).unwrap(), frontier(&[(2, 3)]));
    }

    #[test]
    fn sequences_that_no_origin_reaches_are_refused() {
        let decoded = |sequence| {
            let bytes = postcard::to_stdvec(&frontier(&[(1, 3), (2, sequence)])).unwrap();
            postcard::from_bytes::<Frontier>(&bytes)
        };
        assert!(decoded(SEQUENCE_MAX).is_ok());
        assert!(decoded(SEQUENCE_MAX + 1).is_err());
    }

    #[test]
    fn a_difference_is_what_to_ask_for() {
        let mine = frontier(&[(1, 5), (2, 7)]);
        let theirs = frontier(&[(1, 8), (2, 3), (9, 2)]);
        assert_eq!(
            mine.lacks(&theirs),
            [
                SequenceRange {
                    origin: OriginId(1),
                    from: 5,
                    to: 8
                },
                SequenceRange {
                    origin: OriginId(9),
                    from: 0,
                    to: 2
                },
            ]
        );
        assert_eq!((mine.behind(&theirs), theirs.behind(&mine)), (5, 4));
    }

    proptest! {
        #[test]
        fn merge_is_the_least_upper_bound(a in any_frontier(), b in any_frontier(), c in any_frontier()) {
            let merged = |x: &Frontier, y: &Frontier| { let mut m = x.clone(); m.merge(y); m };
            let ab = merged(&a, &b);
            prop_assert_eq!(&ab, &merged(&b, &a));
            prop_assert_eq!(merged(&ab, &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(&merged(&ab, &ab), &ab);
            prop_assert!(ab.lacks(&a).is_empty() && ab.lacks(&b).is_empty());
        }

        #[test]
        fn fetching_what_is_lacked_reaches_the_merge(a in any_frontier(), b in any_frontier()) {
            let mut reached = a.clone();
            for range in a.lacks(&b) {
                for sequence in range.from + 1..=range.to {
                    prop_assert_eq!(reached.position(range.origin, sequence), Position::Next);
                    reached.raise(range.origin, sequence);
                }
            }
            let mut merged = a.clone();
            merged.merge(&b);
            prop_assert_eq!(reached, merged);
        }
    }
}
