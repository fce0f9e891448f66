//! What one worker slot trains next.
//!
//! A worker goes through a queue of shards and takes minibatches from the front. Its own shards join the
//! queue epoch by epoch, without waiting for other slots. The queue holds full shard names, not positions in
//! the current epoch, so that shards of other slots and of earlier epochs can join it too: once its own are
//! done, a slot claims unstarted shards of the slowest, then what dead workers left.

mod board;
#[cfg(test)]
mod claim_tests;
mod claims;
#[cfg(test)]
mod cluster_tests;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};

use crate::sampling::shards::ShardPlan;
use board::Board;
use protocol::ids::OriginId;
use protocol::job::Trainers;
use protocol::log::cursor::{CursorAdvance, Cursors, ShardId};
use protocol::wire::attach::Missing;

pub use shared::{PlanError, SharedPlan};

/// The samples of one worker slot, minibatch by minibatch.
///
/// It has to be told what others do: [`SamplePlan::observe`] with every applied batch of another origin,
/// [`SamplePlan::set_origin_alive`] and [`SamplePlan::set_slot_alive`] when workers are lost. What it is not told it finds
/// out late or never: without `observe` it trains what others have trained, and without the deaths it waits for the dead.
#[derive(Clone, Debug)]
pub struct SamplePlan {
    shared: SharedPlan,
    slot: usize,
    /// The plan of the epoch last trained from.
    open: ShardPlan,
    /// The first epoch whose shards have not joined the queue.
    next_epoch: u32,
    /// Shards to train, in this order.
    queue: VecDeque<ShardId>,
    /// Where to go on in each shard, and which are for others to finish.
    board: Board,
    /// What was handed out and is outstanding: it is not trained, nor is anybody else heard to have trained it.
    outstanding: Vec<CursorAdvance>,
    /// Nothing was handed out since a batch left.
    is_fresh: bool,
    /// Founders' slots that have no worker.
    vacant: BTreeSet<usize>,
}

impl SamplePlan {
    /// The plan of a slot at the start of a run. One beyond the slots that samples are shared out to is a guest's: it
    /// has none of its own and lives on claims.
    pub fn new(shared: SharedPlan, slot: usize) -> Result<Self, PlanError> {
        shared.check(slot)?;
        let open = shared.shard_plan(0);
        // A slot without samples in one epoch has none in any: it need not look through all of them.
        let idle = slot >= shared.slots || open.shards_of(slot).all(|shard| open.samples(shard).is_empty());
        Ok(Self {
            next_epoch: if idle { shared.epochs } else { 0 },
            board: Board::new(&open, shared.slots, shared.epochs),
            shared,
            slot,
            open,
            queue: VecDeque::new(),
            outstanding: Vec::new(),
            is_fresh: true,
            vacant: BTreeSet::new(),
        })
    }

    /// Names the origin of this slot's worker, which decides who of two goes on with a shard that both have begun.
    #[must_use]
    pub fn of_origin(mut self, origin: OriginId) -> Self {
        self.board.set_own(origin);
        self
    }

    /// Leaves out samples that are done already, so that a worker that was started again goes on where its
    /// work was last seen.
    ///
    /// Who did them is not known. Shards of this slot that are half done are taken to be left by an earlier worker
    /// of the slot and are gone on with; those of other slots are taken to be in the hands of their owners.
    pub fn skip_done(&mut self, cursors: &Cursors) {
        for epoch_span in cursors.epoch_spans() {
            self.board.skip(epoch_span);
        }
        self.trained_by_others(cursors);
    }

    /// Takes note that another origin's batch was applied, which moved these cursors.
    ///
    /// A shard that another origin has begun is left to it until it is said to be dead. A shard that both have begun
    /// is gone on with by the one that is further, or by both from wherever either is while neither has heard so.
    pub fn observe(&mut self, origin: OriginId, advances: &[CursorAdvance]) {
        for &advance in advances {
            self.board.observe(origin, advance);
            self.outstanding
                .retain(|one| one.shard != advance.shard || one.done > advance.done);
        }
    }

    /// Takes note that many batches of another origin were applied at once, which moved these cursors.
    pub fn observe_many(&mut self, origin: OriginId, cursors: &Cursors) {
        for epoch_span in cursors.epoch_spans() {
            match epoch_span.single() {
                Some(advance) => self.board.observe(origin, advance),
                // An origin is at one shard at a time: what it has left in several epochs it is not at.
                None => self.board.skip(epoch_span),
            }
        }
        self.trained_by_others(cursors);
    }

    fn trained_by_others(&mut self, cursors: &Cursors) {
        self.outstanding.retain(|one| one.done > cursors.done(one.shard));
    }

    /// Takes note that a minibatch which was handed out may fail to be trained. It is this slot's to train, unless others do so
    /// who take this slot for dead.
    pub fn add_outstanding(&mut self, advances: &[CursorAdvance]) {
        self.outstanding.extend_from_slice(advances);
    }

    /// Takes note that one of those is trained.
    pub fn settle(&mut self, advances: &[CursorAdvance]) {
        self.outstanding.retain(|one| !advances.contains(one));
    }

    /// Whether something that was handed out is still to be trained.
    #[must_use]
    pub fn is_in_arrears(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Takes note of whether an origin emits batches. What it has begun and not finished is free as long as it does not; it may
    /// only be out of reach.
    ///
    /// Its batches may still arrive by way of others, before or after this.
    pub fn set_origin_alive(&mut self, origin: OriginId, alive: bool) {
        self.board.set_origin_alive(origin, alive);
    }

    /// Takes note of whether a slot has a worker. All its unfinished shards are free as long as it has none.
    ///
    /// If batches of its last worker may still arrive, say [`SamplePlan::set_origin_alive`] too; else they look like the
    /// work of somebody who lives. This slot itself has a worker, whatever is said.
    pub fn set_slot_alive(&mut self, slot: usize, alive: bool) {
        if slot == self.slot {
            return;
        }
        self.board.set_slot_alive(slot, alive);
        if alive {
            self.vacant.remove(&slot);
        } else if slot < self.shared.founders {
            self.vacant.insert(slot);
        }
    }

    /// Whether this slot may take over what others were to train: it is among the trainers, which are the lowest slots that
    /// have a worker.
    fn may_claim(&self) -> bool {
        let Trainers::AtMost(most) = self.shared.trainers else {
            return true;
        };
        let lower = self.slot.min(self.shared.founders);
        let vacant = self.vacant.range(..lower).count();
        lower - vacant < most as usize
    }

    /// Whether every sample of every epoch is done, those handed out by [`SamplePlan::next_minibatch`] and not outstanding
    /// included.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.is_in_arrears()
            && self.board.samples_done() == self.shared.labels.len() as u64 * u64::from(self.shared.epochs)
    }

    /// The samples that are neither done nor handed out, by the slots that were to train them.
    #[must_use]
    pub fn missing(&self) -> Vec<Missing> {
        self.board.missing()
    }

    /// Replaces `indices` by the samples of the next minibatch and `advances` by the cursors that hold once
    /// it is trained, one for each shard it takes samples from. Returns false, and empties both, when there is nothing
    /// to train now.
    ///
    /// That need not be the end: unless [`SamplePlan::is_complete`], the rest is in the hands of others. The worker
    /// then waits for news and asks again after each, for they may die before they finish.
    ///
    /// A minibatch takes from as many shards as it needs to be full, but never from two epochs, nor from more than
    /// `shards_max`: then it is smaller, and the next one goes on from there.
    pub fn next_minibatch(
        &mut self,
        shards_max: usize,
        indices: &mut Vec<u32>,
        advances: &mut Vec<CursorAdvance>,
    ) -> bool {
        indices.clear();
        advances.clear();
        while indices.len() < self.shared.minibatch
            && advances.len() < shards_max
            && let Some(shard) = self.next_shard()
        {
            if self.open.epoch() != shard.epoch {
                if !indices.is_empty() {
                    break;
                }
                self.open = self.shared.shard_plan(shard.epoch);
            }
            let done = self.board.done(shard);
            let rest = &self.open.samples(shard.shard)[done as usize..];
            let taken = rest.len().min(self.shared.minibatch - indices.len());
            indices.extend_from_slice(&rest[..taken]);
            let done = done + taken as u32;
            let advance = CursorAdvance { shard, done };
            self.board.hand_out(advance);
            self.is_fresh = false;
            advances.push(advance);
        }
        !indices.is_empty()
    }

    /// Whether there is something to train now.
    pub fn has_more(&mut self) -> bool {
        self.next_shard().is_some()
    }

    /// A batch has left that counts all that was handed out.
    pub fn batch_left(&mut self) {
        self.is_fresh = true;
    }

    /// Whether this slot has nothing left, for now, of the epoch that it trained from last.
    #[must_use]
    pub fn ends_epoch(&self) -> bool {
        let is_left = |shard: &ShardId| self.board.is_unfinished(*shard) && !self.board.is_taken(*shard);
        let mut of_epoch = self.queue.iter().filter(|shard| shard.epoch == self.open.epoch());
        !of_epoch.any(is_left)
    }

    /// The first shard to train of the queue, which takes in the next epochs and then a claim when it has none.
    fn next_shard(&mut self) -> Option<ShardId> {
        loop {
            if let Some(shard) = self.queued_shard() {
                return Some(shard);
            }
            if self.next_epoch >= self.shared.epochs {
                if !self.may_claim() {
                    return None;
                }
                let knows_claims = !self.shared.claims_after_batches || self.is_fresh;
                let claimed = self.board.claim(self.slot, knows_claims)?;
                self.queue.push_back(claimed);
                return Some(claimed);
            }
            let own = || self.open.shards_of(self.slot);
            // What was done before this worker came need not be looked at epoch by epoch.
            let epoch = self.next_epoch;
            let unfinished = own().map(|shard| self.board.first_unfinished(ShardId { epoch, shard }));
            let epoch = unfinished.min().unwrap_or(self.shared.epochs).min(self.shared.epochs);
            self.next_epoch = epoch;
            if epoch < self.shared.epochs {
                self.queue.extend(own().map(|shard| ShardId { epoch, shard }));
                self.next_epoch += 1;
            }
        }
    }

    /// The first shard of the queue with samples left for this slot; those without leave the queue. One that another
    /// is at need not come back: should its origin die, it can be claimed.
    fn queued_shard(&mut self) -> Option<ShardId> {
        while let Some(&shard) = self.queue.front() {
            if self.board.is_unfinished(shard) && !self.board.is_taken(shard) {
                return Some(shard);
            }
            self.queue.pop_front();
        }
        None
    }
}
