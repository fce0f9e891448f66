//! Claims: the shards of other slots that a slot takes over when it has none left of its own.
//!
//! A slot claims a shard without asking: it trains it, and other slots hear of that with its first batch. Two slots
//! that claim the same shard before they have heard of each other both train it until the one that is behind hears of
//! the other, so a double claim costs one shard at most, and one round where workers wait for each other. The choice
//! therefore avoids the shards that others are likely to choose: while there are epochs that the owner has not reached,
//! each claimer goes through them from a different one on.

use std::cmp::Reverse;
use std::ops::Range;

use super::board::{Board, SlotState};
use protocol::job::split::SHARDS_PER_SLOT;
use protocol::log::cursor::ShardId;

/// Number of unfinished shards of dead workers among which an idle worker chooses one to take over.
const REMAINDERS: usize = 1024;

impl Board {
    /// Returns the shard that an idle slot should take over, if there is one.
    ///
    /// Slots without a worker come after those that have one: only claimers will begin their shards, so these can wait,
    /// and a worker may yet come back to them. A claimer that does not know the newest claims of others avoids shards
    /// that they may have: the shards of slots that have a worker, and of the other slots all shards outside its own
    /// turn.
    pub(super) fn claim(&mut self, claimer: usize, knows_claims: bool) -> Option<ShardId> {
        let of_living = knows_claims.then(|| self.unstarted_of_slowest(claimer, true)).flatten();
        of_living.or_else(|| {
            let left = self.unstarted_of_slowest(claimer, false);
            left.or_else(|| self.remainder(claimer))
                .filter(|&shard| knows_claims || self.turn_of(claimer).takes(shard))
        })
    }

    /// Returns the claimer's place among the slots that have a worker. By their places, claimers (idle slots that take
    /// over shards) divide the shards of slots without a worker between them; the places of two claimers differ if both
    /// know of the same dead workers.
    fn turn_of(&self, claimer: usize) -> Turn {
        let living = |(slot, state): (usize, &SlotState)| (state.alive || slot == claimer).then_some(slot);
        let claimers = self.slots.iter().enumerate().filter_map(living);
        let count = claimers.clone().count().max(1);
        let before = claimers.filter(|&slot| slot < claimer).count();
        let own = if claimer < self.slots.len() { before } else { claimer };
        Turn {
            own: own % count,
            count,
        }
    }

    /// Returns an unstarted shard of the slot that has most of them and so is the slowest, among slots with a worker
    /// (`alive`) or those without.
    fn unstarted_of_slowest(&mut self, claimer: usize, alive: bool) -> Option<ShardId> {
        let slots = self.slots.len();
        // Counted from the claimer on, so that claimers differ where slots do not.
        let slowest = (0..slots)
            .map(|step| (claimer + step) % slots)
            .filter(|&slot| self.slots[slot].alive == alive && self.slots[slot].unstarted > 0)
            .min_by_key(|&slot| Reverse(self.slots[slot].unstarted))?;
        self.in_an_epoch_of_its_own(claimer, slowest)
            .or_else(|| self.in_the_last_epoch(claimer, slowest))
    }

    /// Returns a shard of the slot `slot` that no worker has begun, for `claimer` to take over. Each claimer begins its
    /// search at another epoch, goes down from there, and then down from the last epoch: so claimers that hear late of
    /// each other rarely take the same shard.
    fn in_an_epoch_of_its_own(&mut self, claimer: usize, slot: usize) -> Option<ShardId> {
        let epochs = self.epochs;
        let unclaimed = self.slots[slot]
            .unclaimed
            .get_or_insert_with(|| orders(claimer, epochs));
        let mut unclaimed = std::mem::take(unclaimed);
        let mut found = None;
        while let Some(range) = unclaimed.last_mut()
            && found.is_none()
        {
            let Some(epoch) = range.clone().next_back() else {
                unclaimed.pop();
                continue;
            };
            let begun = !self.is_unstarted(ShardId {
                epoch,
                shard: first_of(slot),
            });
            match self.unstarted_in(claimer, slot, epoch) {
                None => range.end = epoch,
                // The slot itself has come to this epoch, and has passed all earlier ones.
                Some(_) if begun => drop(unclaimed.pop()),
                some => found = some,
            }
        }
        self.slots[slot].unclaimed = Some(unclaimed);
        found
    }

    /// Returns a shard of the slot `slot` that no worker has begun, for `claimer` to take over. It is of the last epoch
    /// that has one.
    fn in_the_last_epoch(&mut self, claimer: usize, slot: usize) -> Option<ShardId> {
        while let Some(epoch) = self.slots[slot].all_started_from.checked_sub(1) {
            let found = self.unstarted_in(claimer, slot, epoch);
            if found.is_some() {
                return found;
            }
            // Shards that were begun stay so: no later claim needs to look at this epoch again.
            self.slots[slot].all_started_from = epoch;
        }
        None
    }

    /// Returns a shard of another slot in one epoch that no worker has begun, for `claimer` to take over. Claimers take
    /// shards from the end and the owner from the front, and a claimer takes the owner's next shard only if there is no
    /// other. Claimers that search at the same moment, as in rounds, hear too late of each other's choice, so each
    /// picks a different shard; if the slot has no worker, a claimer prefers the shards of its own turn.
    fn unstarted_in(&self, claimer: usize, slot: usize, epoch: u32) -> Option<ShardId> {
        let first = first_of(slot);
        let shards = (first..first + SHARDS_PER_SLOT).map(|shard| ShardId { epoch, shard });
        let mut unstarted = shards.filter(|&shard| self.is_unstarted(shard));
        let next = unstarted.next()?;
        let is_left = !self.slots[slot].alive;
        let later: Vec<ShardId> = unstarted.rev().chain(is_left.then_some(next)).collect();
        let turn = self.turn_of(claimer);
        let own = later.iter().find(|&&shard| is_left && turn.takes(shard));
        let of_claimer = claimer.checked_rem(later.len()).map(|place| later[place]);
        own.copied().or(of_claimer).or(Some(next))
    }

    /// Returns a begun shard that a dead worker left, out of the first [`REMAINDERS`]; different claimers take
    /// different ones.
    fn remainder(&self, claimer: usize) -> Option<ShardId> {
        let left: Vec<ShardId> = self.left_behind().take(REMAINDERS).collect();
        (!left.is_empty()).then(|| left[claimer % left.len()])
    }
}

/// Turn of one claimer (an idle slot that takes over shards) among several: by turns they divide the shards of slots
/// without a worker.
struct Turn {
    own: usize,
    count: usize,
}

impl Turn {
    /// True if it is this claimer's turn to take over the shard. Claimers with other turns prefer other shards, so that
    /// they rarely take the same one.
    fn takes(&self, shard: ShardId) -> bool {
        let from_the_end = SHARDS_PER_SLOT - 1 - shard.shard % SHARDS_PER_SLOT;
        from_the_end as usize % self.count == self.own
    }
}

/// Returns the ranges of epochs in which a claimer (an idle slot that takes over shards) searches for shards of another
/// slot: the last range first, and each from its last epoch down. Claimers begin at different epochs, the first one at
/// the last epoch.
fn orders(claimer: usize, epochs: u32) -> Vec<Range<u32>> {
    /// Factor (2⁶⁴ divided by the golden ratio) that scatters the numbers of claimers, so that claimers of neighbouring
    /// slots begin their search at distant epochs.
    const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;
    let scattered = (claimer as u64).wrapping_mul(SCATTER) >> 32;
    let begins = epochs - (scattered % u64::from(epochs.max(1))) as u32;
    vec![begins..epochs, 0..begins]
}

const fn first_of(slot: usize) -> u32 {
    slot as u32 * SHARDS_PER_SLOT
}
