//! What a slot knows of every shard of the run: how far it is, and who is at it.

use std::collections::{BTreeMap, BTreeSet};

use crate::cursor::{CursorAdvance, Cursors, ShardId};
use crate::ids::OriginId;
use crate::split::{SHARDS_PER_SLOT, ShardPlan};

/// The state of all shards of all epochs, as far as one slot has heard.
///
/// A shard is *unstarted* if it holds samples and none of them is done, and *unfinished* if some are not done.
#[derive(Clone, Debug)]
pub(super) struct Board {
    /// The samples in each shard of an epoch, which are as many in every epoch.
    lengths: Vec<u32>,
    epochs: u32,
    /// What this slot has handed out, and what it was told is done. Never beyond the end of a shard, so that the
    /// sum tells when all is done.
    done: Cursors,
    /// The shard that this slot began itself and goes on with, whoever else is at it. Never more than one: a shard
    /// is begun only when the one before has no samples left.
    mine: Option<ShardId>,
    /// The unfinished shards that others began, with the origin that last advanced them. None if that was not told;
    /// then it was probably the worker of the slot that owns the shard.
    pub(super) begun: BTreeMap<ShardId, Option<OriginId>>,
    /// Origins that emit no more, as far as anybody knows.
    dead: BTreeSet<OriginId>,
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
}

impl Board {
    /// Nothing is done and everybody is alive. The plan may be of any epoch.
    pub(super) fn new(plan: &ShardPlan, slots: usize, epochs: u32) -> Self {
        let length = |shard| plan.samples(shard).len() as u32;
        let state = |slot| SlotState {
            alive: true,
            unstarted: plan.shards_of(slot).map(length).map(u64::from).sum::<u64>() * u64::from(epochs),
            all_started_from: epochs,
        };
        Self {
            lengths: (0..plan.shard_count()).map(length).collect(),
            epochs,
            done: Cursors::default(),
            mine: None,
            begun: BTreeMap::new(),
            dead: BTreeSet::new(),
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
        matches!(self.begun.get(&shard), Some(&Some(origin)) if !self.is_dead(origin))
    }

    pub(super) fn is_dead(&self, origin: OriginId) -> bool {
        self.dead.contains(&origin)
    }

    /// This slot trains a shard up to here.
    pub(super) fn hand_out(&mut self, advance: CursorAdvance) {
        self.learn(advance);
        self.mine = Some(advance.shard);
        self.begun.remove(&advance.shard);
    }

    /// Somebody trained a shard up to here, nobody knows who.
    pub(super) fn skip(&mut self, advance: CursorAdvance) {
        if self.learn(advance) > 0 && self.is_unfinished(advance.shard) && self.mine != Some(advance.shard) {
            self.begun.entry(advance.shard).or_default();
        }
    }

    /// Another origin trained a shard up to here.
    pub(super) fn observe(&mut self, origin: OriginId, advance: CursorAdvance) {
        if self.learn(advance) == 0 || !self.is_unfinished(advance.shard) || self.mine == Some(advance.shard) {
            return;
        }
        // Late words of the dead do not take a shard from the living.
        if !(self.is_dead(origin) && self.is_taken(advance.shard)) {
            self.begun.insert(advance.shard, Some(origin));
        }
    }

    pub(super) fn origin_dead(&mut self, origin: OriginId) {
        self.dead.insert(origin);
    }

    pub(super) fn origin_alive(&mut self, origin: OriginId) {
        self.dead.remove(&origin);
    }

    pub(super) fn slot_dead(&mut self, slot: usize) {
        let Some(state) = self.slots.get_mut(slot) else {
            return;
        };
        state.alive = false;
        // Most were begun by the worker that is gone, and nobody may have said which origin that was. Claimers that
        // live are heard of again with their next step.
        for (_, origin) in self.begun.iter_mut().filter(|(shard, _)| owner(**shard) == slot) {
            *origin = None;
        }
    }

    pub(super) fn slot_alive(&mut self, slot: usize) {
        if let Some(state) = self.slots.get_mut(slot) {
            state.alive = true;
        }
    }

    /// Takes note of an advance, as far as there are such samples. Returns how many of them are news.
    fn learn(&mut self, advance: CursorAdvance) -> u32 {
        let CursorAdvance { shard, done } = advance;
        let Some(&length) = self
            .lengths
            .get(shard.shard as usize)
            .filter(|_| shard.epoch < self.epochs)
        else {
            return 0;
        };
        let unstarted = self.is_unstarted(shard);
        let done = done.min(length);
        let news = self.done.advance(CursorAdvance { shard, done });
        if news > 0 && unstarted {
            self.slots[owner(shard)].unstarted -= u64::from(length);
        }
        if !self.is_unfinished(shard) {
            self.begun.remove(&shard);
        }
        news
    }
}

/// The slot that a shard belongs to: shards are numbered slot by slot.
pub(super) const fn owner(shard: ShardId) -> usize {
    (shard.shard / SHARDS_PER_SLOT) as usize
}
