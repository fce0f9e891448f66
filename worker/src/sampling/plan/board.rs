//! The board: progress of every shard of the run, and the origin that trains each shard, as one slot knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use protocol::ids::OriginId;
use protocol::job::split::SHARDS_PER_SLOT;
use protocol::log::cursor::{CursorAdvance, Cursors, EpochSpan, News, ShardId};
use protocol::wire::attach::Missing;

use crate::sampling::shards::ShardPlan;

/// Largest number of shards (parts of an epoch) for which a slot remembers the workers that train them. Every honest
/// worker trains one shard at a time, so only a lying member causes more.
const BEGUN_MAX: usize = 1 << 16;

/// Progress of all shards of all epochs, as far as one worker slot has heard. A shard is a part of an epoch's samples.
///
/// A shard is *unstarted* if it holds samples and none of them is done, and *unfinished* if some are not done.
#[derive(Clone, Debug)]
pub(super) struct Board {
    /// Number of samples in each shard (part of an epoch); the same in every epoch.
    lengths: Vec<u32>,
    pub(super) epochs: u32,
    /// For each shard, the number of samples that this slot has handed out or has heard are done. Never beyond the end
    /// of a shard, so that the sum shows when all samples are done.
    done: Cursors,
    /// Shard (part of an epoch) that the worker of this slot has begun itself, and trains until it leaves it to another
    /// worker. Never more than one: a shard is begun only when the one before has no samples left, or is left to
    /// another worker.
    mine: Option<ShardId>,
    /// Unfinished shards that others began, with the origin (one life of a worker) that last advanced them. A begun
    /// shard without an entry was begun by an unknown origin, probably the worker of the slot that owns it.
    begun: BTreeMap<ShardId, OriginId>,
    /// Origins (lives of workers) that are known to emit no more batches, so that their unfinished shards are free.
    dead: BTreeSet<OriginId>,
    /// Name of this slot's worker as batches carry it (its origin), if its batches can reach others.
    own: Option<OriginId>,
    pub(super) slots: Vec<SlotState>,
}

/// State of one worker slot (a share of the samples), as far as another slot has heard.
#[derive(Clone, Debug)]
pub(super) struct SlotState {
    /// True if the slot has a worker, so that its shards are probably trained.
    pub(super) alive: bool,
    /// Number of samples in shards of the slot that no worker has begun, over all epochs.
    pub(super) unstarted: u64,
    /// First epoch from which on all of the slot's shards are begun, so that other slots need not search there. Lowered
    /// only by searches, so it may be higher than necessary.
    pub(super) all_started_from: u32,
    /// Ranges of epochs in which this slot may still have shards that no worker has begun, for idle slots that look for
    /// shards to take over. They search the last range first, and each from its last epoch down. `None` before the
    /// first search.
    pub(super) unclaimed: Option<Vec<Range<u32>>>,
}

impl Board {
    /// Creates the board (progress of all shards) of a run in which no sample is trained and every slot has a worker.
    /// `plan` gives the lengths of the shards; it may be of any epoch, because these are the same in all.
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

    pub(super) fn done(&self, shard: ShardId) -> u32 {
        self.done.done(shard)
    }

    pub(super) const fn samples_done(&self) -> u64 {
        self.done.samples_done()
    }

    pub(super) fn is_unfinished(&self, shard: ShardId) -> bool {
        self.done.done(shard) < self.lengths[shard.shard as usize]
    }

    pub(super) fn is_unstarted(&self, shard: ShardId) -> bool {
        self.done.done(shard) == 0 && self.is_unfinished(shard)
    }

    /// True if a living worker of another slot trains the shard.
    pub(super) fn is_taken(&self, shard: ShardId) -> bool {
        self.begun.get(&shard).is_some_and(|&origin| !self.is_dead(origin))
    }

    pub(super) fn is_dead(&self, origin: OriginId) -> bool {
        self.dead.contains(&origin)
    }

    /// Sets the origin (name of one life) of this slot's worker. If two workers have begun the same shard, their
    /// origins can decide which one goes on.
    pub(super) fn set_own(&mut self, origin: OriginId) {
        self.own = Some(origin);
    }

    /// Records that this slot trains a shard up to the given sample.
    pub(super) fn hand_out(&mut self, advance: CursorAdvance) {
        self.learn(advance.into());
        self.mine = Some(advance.shard);
        self.begun.remove(&advance.shard);
    }

    /// Records that an unknown worker has trained a shard up to a sample, in each epoch of the span.
    pub(super) fn skip(&mut self, epoch_span: EpochSpan) {
        self.learn(epoch_span);
    }

    /// Records that another origin (one life of a worker) has trained a shard up to a sample.
    ///
    /// Workers that go in step may begin the same shard in the same round, and would both train all of it. The one that
    /// is behind then leaves it to the other; if both are equally far, the higher origin does. One always goes on: no
    /// worker leaves a shard to an origin that is behind, nor to a higher one that is equally far, so they never leave
    /// it in a circle, however late they hear of each other.
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
        // A late batch of a dead origin does not take a shard from a living one.
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
            // The lost worker began most of these shards, and its origin may be unknown. Living claimers are recorded
            // again with their next step.
            self.begun.retain(|shard, _| owner(shard.shard) != slot);
        }
    }

    /// Returns the number of entries that the board (the progress of all shards) keeps in memory, for tests that it
    /// stays small.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.done.epoch_spans().count() + self.begun.len()
    }

    /// Returns the first epoch from this shard's epoch on in which the shard is not finished. The run may have fewer
    /// epochs.
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

    /// Returns begun shards that their workers will not finish, because these are dead, in no particular order.
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

    /// Returns the number of samples that are not done, for each slot that owns some of them.
    pub(super) fn missing(&self) -> Vec<Missing> {
        let mut samples: Vec<u64> = self.slots.iter().map(|slot| slot.unstarted).collect();
        for epoch_span in self.done.epoch_spans() {
            let rest = self.lengths[epoch_span.shard as usize].saturating_sub(epoch_span.done);
            samples[owner(epoch_span.shard)] += u64::from(rest) * epoch_span.shards().count() as u64;
        }
        let missing = (0u32..).zip(samples).filter(|&(_, samples)| samples > 0);
        missing.map(|(slot, samples)| Missing { slot, samples }).collect()
    }

    /// Records the progress of a shard in a span of epochs. Ignores samples that the shard does not have and epochs
    /// that the run does not have. Returns the part that was not known before.
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

/// Returns the slot that a shard belongs to: shards are numbered slot by slot.
pub(super) const fn owner(shard: u32) -> usize {
    (shard / SHARDS_PER_SLOT) as usize
}
