//! The shard plan: one epoch's samples, dealt to slots and cut into shards.

use std::ops::Range;

use protocol::job::split::{SHARDS_PER_SLOT, SLOTS_MAX, Split};
use protocol::rng::CounterRng;

use super::classes::Classes;
use super::deal::deal;
use super::interleave::Interleaver;

/// Random streams of the seed by which samples are shuffled; the epoch makes up the low half.
const ORDER_STREAMS: u64 = 0x7361_6d70 << 32;
/// Random streams of the seed that break ties between classes when shards are balanced.
const TIE_STREAMS: u64 = 0x7469_6573 << 32;

/// Samples of each shard in one epoch, in the order in which they are trained. A shard is one of the parts into which a
/// worker slot's samples are cut.
///
/// A pure function of its arguments. Shards are numbered slot by slot, and the number of samples in a shard depends on
/// the labels, the split and the number of slots, but neither on the seed nor on the epoch. So it is known if a cursor
/// (shard position) completes its shard without building the plan of its epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlan {
    epoch: u32,
    /// Every sample of the epoch once, shard after shard.
    order: Vec<u32>,
    /// Index in `order` at which each shard begins, and the end of the last shard.
    bounds: Vec<u32>,
}

impl ShardPlan {
    /// Plans an epoch over samples with these labels. Each slot gets the samples that the epoch `dealt` gave it.
    ///
    /// With `balanced`, the order within a shard interleaves its classes in proportion; else it is random.
    ///
    /// # Panics
    /// If there are no slots, or more samples or shards than a `u32` counts.
    #[must_use]
    pub fn new(split: Split, seed: u64, epoch: u32, dealt: u32, labels: &[u32], slots: usize, balanced: bool) -> Self {
        assert!(slots > 0, "samples cannot be distributed: there are no slots");
        assert!(
            u32::try_from(labels.len()).is_ok(),
            "the number of samples does not fit into 32 bits"
        );
        assert!(slots <= SLOTS_MAX, "the number of shards does not fit into 32 bits");

        let classes = Classes::new(labels);
        let shuffled = shuffled(seed, epoch, labels.len());
        let owners = if dealt == epoch {
            deal(split, &shuffled, &classes, slots)
        } else {
            let then = self::shuffled(seed, dealt, labels.len());
            of_then(&then, &deal(split, &then, &classes, slots), &shuffled)
        };
        let shares = shares(&owners, slots);
        let mut plan = Self {
            epoch,
            order: gather(&shuffled, &owners, &shares),
            bounds: cut(&shares),
        };
        if balanced {
            let ties = CounterRng::new(seed, TIE_STREAMS | u64::from(epoch));
            let mut interleaver = Interleaver::new(&classes, ties);
            for shard in 0..plan.shard_count() {
                let range = plan.range(shard);
                interleaver.interleave(&mut plan.order[range]);
            }
        }
        plan
    }

    #[must_use]
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.order.len()
    }

    /// True if the epoch has no samples.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the number of shards, empty ones included.
    #[must_use]
    pub const fn shard_count(&self) -> u32 {
        // There is one bound more than there are shards.
        self.bounds.len() as u32 - 1
    }

    /// Returns the samples of a shard, in the order in which they are trained.
    ///
    /// # Panics
    /// If there is no such shard.
    #[must_use]
    pub fn samples(&self, shard: u32) -> &[u32] {
        &self.order[self.range(shard)]
    }

    /// Returns the worker slot whose samples the shard (a part of them) contains.
    #[must_use]
    pub const fn owner(&self, shard: u32) -> usize {
        (shard / SHARDS_PER_SLOT) as usize
    }

    /// Returns the numbers of the shards that belong to a slot, in the order in which they are trained.
    pub fn shards_of(&self, slot: usize) -> impl Iterator<Item = u32> + use<> {
        let first = slot as u32 * SHARDS_PER_SLOT;
        first..first + SHARDS_PER_SLOT
    }

    fn range(&self, shard: u32) -> Range<usize> {
        self.bounds[shard as usize] as usize..self.bounds[shard as usize + 1] as usize
    }
}

/// Returns the shuffled samples of an epoch.
fn shuffled(seed: u64, epoch: u32, samples: usize) -> Vec<u32> {
    let mut shuffled: Vec<u32> = (0..samples as u32).collect();
    CounterRng::new(seed, ORDER_STREAMS | u64::from(epoch)).shuffle(&mut shuffled);
    shuffled
}

/// Returns the owners (worker slots) of samples in the order `now`, from the owners of the same samples in the order
/// `then`.
fn of_then(then: &[u32], owners_then: &[usize], now: &[u32]) -> Vec<usize> {
    let mut owner = vec![0; then.len()];
    for (&sample, &slot) in then.iter().zip(owners_then) {
        owner[sample as usize] = slot;
    }
    now.iter().map(|&sample| owner[sample as usize]).collect()
}

/// Returns the number of samples of each worker slot.
fn shares(owners: &[usize], slots: usize) -> Vec<u32> {
    let mut shares = vec![0; slots];
    for &slot in owners {
        shares[slot] += 1;
    }
    shares
}

/// Groups the samples by the worker slot that owns them. Those of one slot keep their order, which is random, so no
/// second shuffle is needed.
fn gather(samples: &[u32], owners: &[usize], shares: &[u32]) -> Vec<u32> {
    let mut end = 0;
    let mut free: Vec<usize> = shares
        .iter()
        .map(|&share| {
            let first = end;
            end += share as usize;
            first
        })
        .collect();
    let mut gathered = vec![0; samples.len()];
    for (&sample, &slot) in samples.iter().zip(owners) {
        gathered[free[slot]] = sample;
        free[slot] += 1;
    }
    gathered
}

/// Cuts each slot's samples into shards whose lengths differ by at most one, and returns the bounds of all shards.
fn cut(shares: &[u32]) -> Vec<u32> {
    let mut bounds = Vec::with_capacity(shares.len() * SHARDS_PER_SLOT as usize + 1);
    let mut first = 0;
    for &share in shares {
        bounds.extend((0..SHARDS_PER_SLOT).map(|shard| {
            let before = u64::from(share) * u64::from(shard) / u64::from(SHARDS_PER_SLOT);
            first + before as u32
        }));
        first += share;
    }
    bounds.push(first);
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sample_is_one_shard_among_empty_ones() {
        for split in Split::ALL {
            let plan = ShardPlan::new(split, 3, 0, 0, &[7], 4, true);
            let full: Vec<u32> = (0..plan.shard_count())
                .filter(|&shard| !plan.samples(shard).is_empty())
                .collect();
            assert_eq!(full.len(), 1);
            assert_eq!(plan.samples(full[0]), [0]);
        }
    }

    #[test]
    fn no_samples_make_empty_shards() {
        for split in Split::ALL {
            let plan = ShardPlan::new(split, 3, 0, 0, &[], 2, true);
            assert!(plan.is_empty());
            assert_eq!(plan.shard_count(), 2 * SHARDS_PER_SLOT);
            assert!((0..plan.shard_count()).all(|shard| plan.samples(shard).is_empty()));
        }
    }

    #[test]
    #[should_panic(expected = "no slots")]
    fn no_slots_are_refused() {
        let _ = ShardPlan::new(Split::Random, 0, 0, 0, &[1, 2], 0, false);
    }

    #[test]
    fn seed_and_epoch_change_the_order() {
        let labels: Vec<u32> = (0..1000).map(|sample| sample % 10).collect();
        for split in Split::ALL {
            for balanced in [false, true] {
                let order = |seed, epoch| ShardPlan::new(split, seed, epoch, epoch, &labels, 3, balanced).order;
                assert_ne!(order(1, 0), order(1, 1));
                assert_ne!(order(1, 0), order(2, 0));
            }
        }
    }

    #[test]
    fn samples_that_are_dealt_once_keep_their_owners_and_not_their_order() {
        let labels: Vec<u32> = (0..200).map(|sample| sample % 10).collect();
        for split in Split::ALL {
            let plan = |epoch, dealt| ShardPlan::new(split, 5, epoch, dealt, &labels, 4, false);
            let samples_of = |plan: &ShardPlan, slot| {
                let mut all: Vec<u32> = plan
                    .shards_of(slot)
                    .flat_map(|shard| plan.samples(shard).to_vec())
                    .collect();
                all.sort_unstable();
                all
            };
            let (first, later) = (plan(0, 0), plan(3, 0));
            for slot in 0..4 {
                assert_eq!(samples_of(&first, slot), samples_of(&later, slot), "{split}");
            }
            assert_ne!(first.order, later.order, "{split}");
            assert_eq!(first.bounds, later.bounds, "{split}");
        }
    }
}
