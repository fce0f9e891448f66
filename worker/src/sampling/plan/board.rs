//! What a slot knows of every shard of the run: how far it is, and who is at it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use protocol::ids::OriginId;
use protocol::job::split::SHARDS_PER_SLOT;
use protocol::log::cursor::{CursorAdvance, Cursors, EpochSpan, News, ShardId};
use protocol::wire::attach::Missing;

use crate::sampling::shards::ShardPlan;

/// The most shards of which it is known who is at them. Every origin is at one, so there are more only if a member lies.
const BEGUN_MAX: usize = 1 << 16;

/// The state of all shards of all epochs, as far as one slot has heard.
///
/// A shard is *unstarted* if it holds samples and none of them is done, and *unfinished* if some are not done.
#[derive(Clone, Debug)]
pub(super) struct Board {
    /// The samples in each shard of an epoch, which are as many in every epoch.
    lengths: Vec<u32>,
    pub(super) epochs: u32,
    /// What this slot has handed out, and what it was told is done. Never beyond the end of a shard, so that the
    /// sum tells when all is done.
    done: Cursors,
    /// The shard that this slot began itself and goes on with until it leaves it to another origin. Never more than one: a
    /// shard is begun only when the one before has no samples left, or is left to another.
    mine: Option<ShardId>,
    /// Unfinished shards that others began, with the origin that last advanced them. A begun shard without an entry was begun by
    /// an unknown origin, probably the worker of the slot that owns it.
    begun: BTreeMap<ShardId, OriginId>,
    /// Origins that emit no more, as far as anybody knows.
    dead: BTreeSet<OriginId>,
    /// The origin of this slot's worker, where others may hear of it.
    own: Option<OriginId>,
    pub(super) slots: Vec<SlotState>,
}

/// What is known of one slot.
#[derive(Clone, Debug)]
pub(super) struct SlotState {
    /// Whether it has a worker.
    pub(super) alive: bool,
    /// The samples in its unstarted shards, over all epochs.
    pub(super) unstarted: u64,
    /// No epoch from this one on has an unstarted shard. Earlier ones may or may not: it is lowered in passing.
    pub(super) all_started_from: u32,
    /// Epochs in which shards may be claimed before the slot comes to them, as its claims go through them.
    pub(super) unclaimed: Option<Vec<Range<u32>>>,
}

impl Board {
    /// Nothing is done and everybody is alive. The plan may be of any epoch.
    pub(super) fn new(plan: &ShardPlan, slots: usize, epochs: u32) -> Self {
        let length = |shard| plan.samples(shard).len() as u32;
        let state = |slot| SlotState {
            alive: true,
            unstarted: plan.shards_of(slot).map(length).map(u64::from).sum::<u64>() * u64::from(epochs),
            all_started_from: epochs,
            unclaimed: None,
        };
        Self {
            lengths: (0..plan.shard_count()).map(length).collect(),
            epochs,
            done: Cursors::default(),
            mine: None,
            begun: BTreeMap::new(),
            dead: BTreeSet::new(),
            own: None,
            slots: (0..slots).map(state).collect(),
        }
    }

    /// The contiguous samples done of a shard.
    pub(super) fn done(&self, shard: ShardId) -> u32 {
        self.done.done(shard)
    }

    /// The samples done in all shards together.
    pub(super) const fn samples_done(&self) -> u64 {
        self.done.samples_done()
    }

    pub(super) fn is_unfinished(&self, shard: ShardId) -> bool {
        self.done.done(shard) < self.lengths[shard.shard as usize]
    }

    pub(super) fn is_unstarted(&self, shard: ShardId) -> bool {
        self.done.done(shard) == 0 && self.is_unfinished(shard)
    }

    /// Whether somebody else is at a shard and can be trusted to finish it.
    pub(super) fn is_taken(&self, shard: ShardId) -> bool {
        self.begun.get(&shard).is_some_and(|&origin| !self.is_dead(origin))
    }

    pub(super) fn is_dead(&self, origin: OriginId) -> bool {
        self.dead.contains(&origin)
    }

    /// Names the origin of this slot's worker, which decides who of two goes on with a shard that both have begun.
    pub(super) fn set_own(&mut self, origin: OriginId) {
        self.own = Some(origin);
    }

    /// This slot trains a shard up to here.
    pub(super) fn hand_out(&mut self, advance: CursorAdvance) {
        self.learn(advance.into());
        self.mine = Some(advance.shard);
        self.begun.remove(&advance.shard);
    }

    /// Somebody trained a shard up to here in these epochs, nobody knows who.
    pub(super) fn skip(&mut self, epoch_span: EpochSpan) {
        self.learn(epoch_span);
    }

    /// Another origin trained a shard up to here.
    ///
    /// Workers that go in step may begin the same shard in the same round, and would train the rest of it twice. The one that
    /// is behind then leaves it to the other; of two that are abreast, the higher origin does. One always goes on: nobody
    /// leaves a shard to an origin that is behind, and of those abreast nobody to a higher one, so they never leave it in a
    /// circle, however late they hear of each other.
    pub(super) fn observe(&mut self, origin: OriginId, advance: CursorAdvance) {
        let shard = advance.shard;
        let own_done = self.done.done(shard);
        let goes_on = |own: OriginId| advance.done < own_done || advance.done == own_done && own < origin;
        let yields = self.mine == Some(shard) && !self.own.is_none_or(goes_on) && !self.is_dead(origin);
        let news = self.learn(advance.into());
        let is_news = news.samples > 0 && self.mine != Some(shard);
        if !(is_news || yields) || !self.is_unfinished(shard) {
            return;
        }
        if yields {
            self.mine = None;
        }
        // Late batches of the dead do not take a shard from the living.
        let late = self.is_dead(origin) && self.is_taken(shard);
        if !late && (self.begun.len() < BEGUN_MAX || self.begun.contains_key(&shard)) {
            self.begun.insert(shard, origin);
        }
    }

    pub(super) fn set_origin_alive(&mut self, origin: OriginId, alive: bool) {
        if alive {
            self.dead.remove(&origin);
        } else {
            self.dead.insert(origin);
        }
    }

    pub(super) fn set_slot_alive(&mut self, slot: usize, alive: bool) {
        let Some(state) = self.slots.get_mut(slot) else {
            return;
        };
        state.alive = alive;
        if !alive {
            // Most were begun by the worker that is gone, and nobody may have said which origin that was. Claimers that
            // live are heard of again with their next step.
            self.begun.retain(|shard, _| owner(shard.shard) != slot);
        }
    }

    /// How much is kept.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.done.epoch_spans().count() + self.begun.len()
    }

    /// The first epoch, from some epoch on, in which a shard is not finished; there may be no such epoch in the run.
    pub(super) fn first_unfinished(&self, shard: ShardId) -> u32 {
        let length = self.lengths[shard.shard as usize];
        if length == 0 {
            return self.epochs;
        }
        match self.done.epoch_span_at(shard) {
            Some(epoch_span) if epoch_span.done == length => epoch_span.last.saturating_add(1),
            _ => shard.epoch,
        }
    }

    /// Shards that somebody began who will not finish them, in no particular order.
    pub(super) fn left_behind(&self) -> impl Iterator<Item = ShardId> {
        let length = |epoch_span: &EpochSpan| self.lengths[epoch_span.shard as usize];
        self.done
            .epoch_spans()
            .filter(move |epoch_span| epoch_span.done < length(epoch_span))
            .flat_map(EpochSpan::shards)
            .filter(|&shard| match self.begun.get(&shard) {
                Some(&origin) => self.is_dead(origin),
                None => !self.slots[owner(shard.shard)].alive && self.mine != Some(shard),
            })
    }

    /// The samples that are not done, by the slots that were to train them.
    pub(super) fn missing(&self) -> Vec<Missing> {
        let mut samples: Vec<u64> = self.slots.iter().map(|slot| slot.unstarted).collect();
        for epoch_span in self.done.epoch_spans() {
            let rest = self.lengths[epoch_span.shard as usize].saturating_sub(epoch_span.done);
            samples[owner(epoch_span.shard)] += u64::from(rest) * epoch_span.shards().count() as u64;
        }
        let missing = (0u32..).zip(samples).filter(|&(_, samples)| samples > 0);
        missing.map(|(slot, samples)| Missing { slot, samples }).collect()
    }

    /// Takes note of what is done, as far as there are such samples. Returns what of it is news.
    fn learn(&mut self, epoch_span: EpochSpan) -> News {
        let Some(&length) = self
            .lengths
            .get(epoch_span.shard as usize)
            .filter(|_| epoch_span.first < self.epochs)
        else {
            return News::default();
        };
        let known = EpochSpan {
            last: epoch_span.last.min(self.epochs - 1),
            done: epoch_span.done.min(length),
            ..epoch_span
        };
        let news = self.done.raise(known);
        self.slots[owner(known.shard)].unstarted -= u64::from(length) * news.begun;
        if known.done == length {
            match known.single() {
                Some(advance) => drop(self.begun.remove(&advance.shard)),
                None => self.begun.retain(|&shard, _| !known.contains(shard)),
            }
        }
        news
    }
}

/// The slot that a shard belongs to: shards are numbered slot by slot.
pub(super) const fn owner(shard: u32) -> usize {
    (shard / SHARDS_PER_SLOT) as usize
}
