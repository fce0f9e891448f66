//! The sample plan of one worker slot: the order in which it trains its samples.
//!
//! A worker goes through a queue of shards and takes minibatches from the front. Its own shards join the queue epoch by
//! epoch, without waiting for other slots. The queue holds full shard names, not positions in the current epoch, so
//! that shards of other slots and of earlier epochs can join it too: once its own are done, a slot claims unstarted
//! shards of the slowest slot, then shards that dead workers left.

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

/// Plan of the samples of one worker slot (a share of the samples), from which the worker takes minibatch by minibatch.
///
/// The plan must be told about other workers: [`SamplePlan::observe`] with every applied batch of another origin,
/// [`SamplePlan::set_origin_alive`] and [`SamplePlan::set_slot_alive`] when workers are lost. Without `observe` it
/// trains samples that others have trained, and without the deaths it waits for dead workers.
#[derive(Clone, Debug)]
pub struct SamplePlan {
    shared: SharedPlan,
    slot: usize,
    /// Samples of each shard in the epoch that this slot last trained from.
    open: ShardPlan,
    /// First epoch whose shards this slot has not queued for training yet.
    next_epoch: u32,
    /// Shards (parts of epochs) that this slot is to train, in this order.
    queue: VecDeque<ShardId>,
    /// Progress of every shard, as far as this slot knows, and the shards that are left to other workers.
    board: Board,
    /// Shard positions of minibatches that were handed out and that neither this worker nor another is known to have
    /// trained.
    outstanding: Vec<CursorAdvance>,
    /// True if no minibatch was handed out since this worker's last batch left.
    is_fresh: bool,
    /// Slots of founders, the workers that began the run, that have no worker now.
    vacant: BTreeSet<usize>,
}

impl SamplePlan {
    /// Creates the plan of a slot at the start of a run. A slot beyond those that samples are dealt to is a guest's, a
    /// worker that joined late: it has no samples of its own and only takes over shards of others.
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

    /// Sets the origin (name of one life) of this slot's worker. If two workers have begun the same shard, their
    /// origins can decide which one goes on.
    #[must_use]
    pub fn of_origin(mut self, origin: OriginId) -> Self {
        self.board.set_own(origin);
        self
    }

    /// Skips samples that are done already, so that a worker that was started again does not train them a second time.
    ///
    /// The cursors (shard positions) do not name the workers that trained the samples. A half-done shard of this slot
    /// is taken to be left over from an earlier worker of the slot, and this worker completes it. A half-done shard of
    /// another slot is taken to be in progress at that slot's worker.
    pub fn skip_done(&mut self, cursors: &Cursors) {
        for epoch_span in cursors.epoch_spans() {
            self.board.skip(epoch_span);
        }
        self.trained_by_others(cursors);
    }

    /// Records a batch of another origin (one life of a worker), which trained shards up to these cursors.
    ///
    /// A shard that another origin has begun is left to it until that origin is reported dead. If both have begun a
    /// shard, the one that is further goes on with it; until they have heard of each other, both do.
    pub fn observe(&mut self, origin: OriginId, advances: &[CursorAdvance]) {
        for &advance in advances {
            self.board.observe(origin, advance);
            self.outstanding
                .retain(|one| one.shard != advance.shard || one.done > advance.done);
        }
    }

    /// Records many batches of another worker, which were applied at once and trained shards up to these cursors.
    pub fn observe_many(&mut self, origin: OriginId, cursors: &Cursors) {
        for epoch_span in cursors.epoch_spans() {
            match epoch_span.single() {
                Some(advance) => self.board.observe(origin, advance),
                // An origin works on one shard at a time, so it is not working on a cursor that spans several epochs.
                None => self.board.skip(epoch_span),
            }
        }
        self.trained_by_others(cursors);
    }

    fn trained_by_others(&mut self, cursors: &Cursors) {
        self.outstanding.retain(|one| one.done > cursors.done(one.shard));
    }

    /// Records a minibatch that was handed out and may fail to be trained. Its samples stay this slot's, unless other
    /// slots train them because they take this one for dead.
    pub fn add_outstanding(&mut self, advances: &[CursorAdvance]) {
        self.outstanding.extend_from_slice(advances);
    }

    /// Records that an outstanding minibatch (handed out, and not known to be trained) is trained.
    pub fn settle(&mut self, advances: &[CursorAdvance]) {
        self.outstanding.retain(|one| !advances.contains(one));
    }

    /// True if a minibatch that was recorded as outstanding ([`SamplePlan::add_outstanding`]) is not known to be
    /// trained yet, so that the plan is not complete.
    #[must_use]
    pub fn is_in_arrears(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Records whether an origin (one life of a worker) emits batches. While it does not, the shards that it has begun
    /// and not finished can be claimed; it may only be out of reach.
    ///
    /// Batches of a dead origin may still arrive over other nodes, before or after this call.
    pub fn set_origin_alive(&mut self, origin: OriginId, alive: bool) {
        self.board.set_origin_alive(origin, alive);
    }

    /// Records whether a slot has a worker. While it has none, all its unfinished shards can be claimed.
    ///
    /// If batches of its last worker may still arrive, call [`SamplePlan::set_origin_alive`] too; else they look like
    /// the work of a living worker. Ignored for this slot itself, which has a worker.
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

    /// True if this slot may take over other slots' shards: it must be among the trainers, the lowest slots that have a
    /// worker.
    fn may_claim(&self) -> bool {
        let Trainers::AtMost(most) = self.shared.trainers else {
            return true;
        };
        let lower = self.slot.min(self.shared.founders);
        let vacant = self.vacant.range(..lower).count();
        lower - vacant < most as usize
    }

    /// True if every sample of every epoch is done. Samples count as done once [`SamplePlan::next_minibatch`] has
    /// handed them out; those of outstanding minibatches ([`SamplePlan::add_outstanding`]) only once they are trained.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.is_in_arrears()
            && self.board.samples_done() == self.shared.labels.len() as u64 * u64::from(self.shared.epochs)
    }

    /// Returns the number of samples that are neither done nor handed out, for each slot that they belong to.
    #[must_use]
    pub fn missing(&self) -> Vec<Missing> {
        self.board.missing()
    }

    /// Replaces `indices` by the samples of the next minibatch and `advances` by the cursors that hold once it is
    /// trained, one for each shard it takes samples from. Returns false, and empties both, when there is nothing to
    /// train now.
    ///
    /// That need not be the end: unless [`SamplePlan::is_complete`], other workers have the remaining samples. The
    /// worker then waits for news and asks again after each, for they may die before they finish.
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

    /// True if this slot has a minibatch to train now.
    pub fn has_more(&mut self) -> bool {
        self.next_shard().is_some()
    }

    /// Records that a batch has left that counts every minibatch handed out so far.
    pub fn batch_left(&mut self) {
        self.is_fresh = true;
    }

    /// True if this slot has, for now, no samples left in the epoch that it trained from last.
    #[must_use]
    pub fn ends_epoch(&self) -> bool {
        let is_left = |shard: &ShardId| self.board.is_unfinished(*shard) && !self.board.is_taken(*shard);
        let mut of_epoch = self.queue.iter().filter(|shard| shard.epoch == self.open.epoch());
        !of_epoch.any(is_left)
    }

    /// Returns the first shard to train. If the queue is empty, adds the next epoch's own shards to it and, without
    /// any, a shard claimed from another slot.
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
            // Skips epochs that were done before this worker came without looking at each of them.
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

    /// Returns the first shard of the queue with samples left for this slot, and drops the shards before it. Drops also
    /// a shard that another worker is training; if that worker dies, the shard can be taken over.
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
