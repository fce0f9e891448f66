//! How far each shard has been trained: the part of the replicated state that says which samples are done.
//!
//! A cursor is the number of contiguous samples done from the start of a shard. Cursors ride on the batches
//! that carry the work they count, and merge by maximum, so batches may arrive late, twice or in any order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

/// The name of a shard in the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardId {
    /// The epoch, from zero.
    pub epoch: u32,
    /// The number of the shard in its epoch's plan.
    pub shard: u32,
}

/// The news that a shard is done up to some sample. It rides on the batch that holds the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CursorAdvance {
    /// The shard.
    pub shard: ShardId,
    /// Contiguous samples done from the start of the shard, these included.
    pub done: u32,
}

/// The cursors of all shards.
///
/// Two sets of cursors are equal if they say the same of every shard: a shard that was not begun has no
/// entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Vec<CursorAdvance>")]
pub struct Cursors {
    done: BTreeMap<ShardId, u32>,
    /// The sum over `done`, kept so that progress can be asked for at any time.
    samples_done: u64,
}

impl Cursors {
    /// Takes note of an advance, and returns how many samples were not known to be done before.
    pub fn advance(&mut self, advance: CursorAdvance) -> u32 {
        // No entry for nothing: else two equal states could differ.
        if advance.done == 0 {
            return 0;
        }
        let done = self.done.entry(advance.shard).or_insert(0);
        let new = advance.done.saturating_sub(*done);
        *done += new;
        self.samples_done += u64::from(new);
        new
    }

    /// Takes note of all that another set of cursors knows.
    pub fn merge(&mut self, other: &Self) {
        self.extend(other.iter());
    }

    /// The contiguous samples done of a shard.
    #[must_use]
    pub fn done(&self, shard: ShardId) -> u32 {
        self.done.get(&shard).copied().unwrap_or(0)
    }

    /// The samples done in all shards together.
    #[must_use]
    pub const fn samples_done(&self) -> u64 {
        self.samples_done
    }

    /// The cursors of all shards that were begun, by epoch and shard.
    pub fn iter(&self) -> impl Iterator<Item = CursorAdvance> + '_ {
        self.done.iter().map(|(&shard, &done)| CursorAdvance { shard, done })
    }
}

impl Extend<CursorAdvance> for Cursors {
    fn extend<I: IntoIterator<Item = CursorAdvance>>(&mut self, advances: I) {
        for advance in advances {
            self.advance(advance);
        }
    }
}

impl FromIterator<CursorAdvance> for Cursors {
    fn from_iter<I: IntoIterator<Item = CursorAdvance>>(advances: I) -> Self {
        let mut cursors = Self::default();
        cursors.extend(advances);
        cursors
    }
}

impl From<Vec<CursorAdvance>> for Cursors {
    fn from(advances: Vec<CursorAdvance>) -> Self {
        advances.into_iter().collect()
    }
}

/// A list, not a map: text formats know no maps whose keys are structures. Reading goes through
/// [`Cursors::advance`], so that the sum always fits the entries.
impl Serialize for Cursors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Few shards and small numbers, so that advances meet.
    fn advances() -> impl Strategy<Value = Vec<CursorAdvance>> {
        let advance = (0u32..3, 0u32..4, 0u32..6).prop_map(|(epoch, shard, done)| CursorAdvance {
            shard: ShardId { epoch, shard },
            done,
        });
        prop::collection::vec(advance, 0..20)
    }

    fn cursors() -> impl Strategy<Value = Cursors> {
        advances().prop_map(Cursors::from)
    }

    fn merged(a: &Cursors, b: &Cursors) -> Cursors {
        let mut both = a.clone();
        both.merge(b);
        both
    }

    #[test]
    fn an_advance_counts_only_what_is_new() {
        let shard = ShardId { epoch: 1, shard: 2 };
        let mut cursors = Cursors::default();
        let counts = [5, 3, 5, 9, 0].map(|done| cursors.advance(CursorAdvance { shard, done }));
        assert_eq!(counts, [5, 0, 0, 4, 0]);
        assert_eq!(cursors.done(shard), 9);
        assert_eq!(cursors.samples_done(), 9);
        assert_eq!(cursors.done(ShardId { epoch: 2, shard: 1 }), 0);
    }

    #[test]
    fn a_shard_at_zero_is_a_shard_not_begun() {
        let shard = ShardId { epoch: 0, shard: 0 };
        let cursors = Cursors::from(vec![CursorAdvance { shard, done: 0 }]);
        assert_eq!(cursors, Cursors::default());
    }

    proptest! {
        #[test]
        fn merging_is_commutative(a in cursors(), b in cursors()) {
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
        }

        #[test]
        fn merging_is_associative(a in cursors(), b in cursors(), c in cursors()) {
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
        }

        #[test]
        fn merging_is_idempotent(a in cursors(), b in cursors()) {
            prop_assert_eq!(merged(&a, &a), a.clone());
            let both = merged(&a, &b);
            prop_assert_eq!(merged(&both, &b), both);
        }

        #[test]
        fn merging_never_goes_back(a in cursors(), b in cursors()) {
            let both = merged(&a, &b);
            for cursor in a.iter().chain(b.iter()) {
                prop_assert!(both.done(cursor.shard) >= cursor.done);
            }
            prop_assert!(both.samples_done() >= a.samples_done().max(b.samples_done()));
        }

        #[test]
        fn the_order_of_advances_does_not_matter(
            (advances, shuffled) in advances().prop_flat_map(|advances| {
                (Just(advances.clone()), Just(advances).prop_shuffle())
            }),
        ) {
            prop_assert_eq!(Cursors::from(advances), Cursors::from(shuffled));
        }

        #[test]
        fn new_samples_add_up(advances in advances()) {
            let mut cursors = Cursors::default();
            let new: u64 = advances.iter().map(|&advance| u64::from(cursors.advance(advance))).sum();
            prop_assert_eq!(new, cursors.samples_done());
            prop_assert_eq!(new, cursors.iter().map(|cursor| u64::from(cursor.done)).sum::<u64>());
        }

        #[test]
        fn cursors_survive_text_and_bytes(cursors in cursors()) {
            let json = serde_json::to_string(&cursors).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Cursors>(&json).unwrap(), &cursors);
            let bytes = postcard::to_stdvec(&cursors).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Cursors>(&bytes).unwrap(), cursors);
        }
    }
}
