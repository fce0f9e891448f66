//! Which shard of others a slot takes over when it has none left of its own.
//!
//! Nobody is asked: a claim is made by training, and other slots hear of it with the first batch. Two slots that claim the
//! same shard before they have heard of each other both train it until the one that is behind hears of the other, so a
//! double claim costs one shard at most, and one round where workers wait for each other. The choice therefore avoids the
//! shards that others are likely to choose: while there are epochs that their slot has not come to, each claimer goes
//! through them from another one on.

use std::cmp::Reverse;
use std::ops::Range;

use super::board::{Board, SlotState};
use protocol::job::split::SHARDS_PER_SLOT;
use protocol::log::cursor::ShardId;

/// Among how many shards that the dead left a claimer chooses.
const REMAINDERS: usize = 1024;

impl Board {
    /// The shard that an idle slot should take over, if there is any to be had.
    ///
    /// Slots without a worker come after those that have one: theirs can wait, as nobody else will begin them, and
    /// a worker may yet come back to them. A claimer that does not know the newest claims of others spares what they may
    /// have: the shards of slots that have a worker, and of the other slots all shards whose turn is not its own.
    pub(super) fn claim(&mut self, claimer: usize, knows_claims: bool) -> Option<ShardId> {
        let of_living = knows_claims.then(|| self.unstarted_of_slowest(claimer, true)).flatten();
        of_living.or_else(|| {
            let left = self.unstarted_of_slowest(claimer, false);
            left.or_else(|| self.remainder(claimer))
                .filter(|&shard| knows_claims || self.turn_of(claimer).takes(shard))
        })
    }

    /// The claimer's turn among the slots that have a worker: all that know of the same deaths have different turns.
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

    /// An unstarted shard of the slot that has most of them, among those with a worker or those without.
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

    /// An unstarted shard in an epoch that its slot has not come to. The claimer goes down from an epoch of its own
    /// choice, and then down from the end to there: claimers that hear late of each other meet only when they have
    /// gone through what lies between them.
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
                // The slot itself has come to this epoch, and has all before it behind it.
                Some(_) if begun => drop(unclaimed.pop()),
                some => found = some,
            }
        }
        self.slots[slot].unclaimed = Some(unclaimed);
        found
    }

    /// An unstarted shard in the last epoch that has one.
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

    /// An unstarted shard of a slot in one epoch. Claimers come from the end, as the owner comes from the front, and none takes
    /// what the owner comes to next while there is more. Workers that go in step, as in rounds, claim at the same moment and
    /// hear late of each other's claims. So each takes one that another would not take at that moment; of what the dead left,
    /// those first whose turn is its own.
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

    /// A shard that somebody began who will not finish it. One of the first few, so that claimers take different ones.
    fn remainder(&self, claimer: usize) -> Option<ShardId> {
        let left: Vec<ShardId> = self.left_behind().take(REMAINDERS).collect();
        (!left.is_empty()).then(|| left[claimer % left.len()])
    }
}

/// One of several turns, by which claimers share the shards that the dead left among themselves.
struct Turn {
    own: usize,
    count: usize,
}

impl Turn {
    /// Whether a shard belongs to this turn.
    fn takes(&self, shard: ShardId) -> bool {
        let from_the_end = SHARDS_PER_SLOT - 1 - shard.shard % SHARDS_PER_SLOT;
        from_the_end as usize % self.count == self.own
    }
}

/// The epochs of a run in the order in which a claimer goes through those of a slot: the last range first, and each from
/// its end. The first claimer begins at the last epoch.
fn orders(claimer: usize, epochs: u32) -> Vec<Range<u32>> {
    /// The golden ratio of 2⁶⁴: neighbours come to lie far apart.
    const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;
    let scattered = (claimer as u64).wrapping_mul(SCATTER) >> 32;
    let begins = epochs - (scattered % u64::from(epochs.max(1))) as u32;
    vec![begins..epochs, 0..begins]
}

/// The first shard of a slot.
const fn first_of(slot: usize) -> u32 {
    slot as u32 * SHARDS_PER_SLOT
}
