//! Which shard of others a slot takes over when it has none left of its own.
//!
//! Nobody is asked: a claim is made by training, and others hear of it with the first batch. Two that claim the
//! same shard before they have heard of each other both train it, from where they know it to be, so a double claim
//! costs one shard at most. The choice therefore avoids what others are likely to choose.

use std::cmp::Reverse;

use super::board::Board;
use crate::cursor::ShardId;
use crate::split::SHARDS_PER_SLOT;

/// Among how many shards that the dead left a claimer chooses.
const REMAINDERS: usize = 1024;

impl Board {
    /// The shard that an idle slot should take over, if there is any to be had.
    ///
    /// Slots without a worker come after those that have one: theirs can wait, as nobody else will begin them, and
    /// a worker may yet come back to them.
    pub(super) fn claim(&mut self, claimer: usize) -> Option<ShardId> {
        self.unstarted_of_slowest(claimer, true)
            .or_else(|| self.unstarted_of_slowest(claimer, false))
            .or_else(|| self.remainder(claimer))
    }

    /// An unstarted shard of the slot that has most of them, among those with a worker or those without.
    fn unstarted_of_slowest(&mut self, claimer: usize, alive: bool) -> Option<ShardId> {
        let slots = self.slots.len();
        // Counted from the claimer on, so that claimers differ where slots do not.
        let slowest = (0..slots)
            .map(|step| (claimer + step) % slots)
            .filter(|&slot| self.slots[slot].alive == alive && self.slots[slot].unstarted > 0)
            .min_by_key(|&slot| Reverse(self.slots[slot].unstarted))?;
        let first = slowest as u32 * SHARDS_PER_SLOT;
        while self.slots[slowest].all_started_from > 0 {
            let epoch = self.slots[slowest].all_started_from - 1;
            // From the end, as the owner comes from the front. Different claimers begin at different places, but
            // none takes what the owner comes to next while there is more.
            let unstarted: Vec<ShardId> = (first..first + SHARDS_PER_SLOT)
                .rev()
                .map(|shard| ShardId { epoch, shard })
                .filter(|&shard| self.is_unstarted(shard))
                .collect();
            if !unstarted.is_empty() {
                return Some(unstarted[claimer % (unstarted.len() - 1).max(1)]);
            }
            // Shards that were begun stay so: no later claim needs to look at this epoch again.
            self.slots[slowest].all_started_from = epoch;
        }
        None
    }

    /// A shard that somebody began who will not finish it. One of the first few, so that claimers take different ones.
    fn remainder(&self, claimer: usize) -> Option<ShardId> {
        let left: Vec<ShardId> = self.left_behind().take(REMAINDERS).collect();
        (!left.is_empty()).then(|| left[claimer % left.len()])
    }
}
