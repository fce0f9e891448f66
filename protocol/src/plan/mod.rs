//! What one worker slot trains next.
//!
//! A worker goes through a queue of shards and takes minibatches from the front. Its own shards join the
//! queue epoch by epoch, without waiting for other slots. The queue holds full shard names, not positions in
//! the current epoch, so that shards of other slots and of earlier epochs can join it too.

mod shared;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::cursor::{CursorAdvance, Cursors, ShardId};
use crate::split::ShardPlan;

pub use shared::{PlanError, SharedPlan};

/// The samples of one worker slot, minibatch by minibatch.
#[derive(Clone, Debug)]
pub struct SamplePlan {
    shared: SharedPlan,
    slot: usize,
    /// The plan of the epoch last trained from. Its shard lengths hold for all epochs.
    open: ShardPlan,
    /// The first epoch whose shards have not joined the queue.
    next_epoch: u32,
    /// Shards to train, in this order. Where to go on in each is told by `done`.
    queue: VecDeque<ShardId>,
    /// What this slot has handed out, and what it was told is done.
    done: Cursors,
}

impl SamplePlan {
    /// The plan of a slot at the start of a run.
    pub fn new(shared: SharedPlan, slot: usize) -> Result<Self, PlanError> {
        shared.check(slot)?;
        let open = shared.shard_plan(0);
        // A slot without samples in one epoch has none in any: it need not look through all of them.
        let idle = open.shards_of(slot).all(|shard| open.samples(shard).is_empty());
        Ok(Self {
            next_epoch: if idle { shared.epochs } else { 0 },
            shared,
            slot,
            open,
            queue: VecDeque::new(),
            done: Cursors::default(),
        })
    }

    /// Leaves out samples that are done already, so that a worker that was started again goes on where its
    /// work was last seen.
    pub fn skip_done(&mut self, cursors: &Cursors) {
        self.done.merge(cursors);
    }

    /// Replaces `indices` by the samples of the next minibatch and `advances` by the cursors that hold once
    /// it is trained, one for each shard it takes samples from. Returns false, and empties both, when all is
    /// done.
    ///
    /// A minibatch takes from as many shards as it needs to be full, but never from two epochs.
    pub fn next_minibatch(&mut self, indices: &mut Vec<u32>, advances: &mut Vec<CursorAdvance>) -> bool {
        indices.clear();
        advances.clear();
        let Some(ShardId { epoch, .. }) = self.next_shard() else {
            return false;
        };
        if self.open.epoch() != epoch {
            self.open = self.shared.shard_plan(epoch);
        }
        while let Some(shard) = self.queued_shard()
            && shard.epoch == epoch
            && indices.len() < self.shared.minibatch
        {
            let rest = &self.open.samples(shard.shard)[self.done.done(shard) as usize..];
            let taken = rest.len().min(self.shared.minibatch - indices.len());
            indices.extend_from_slice(&rest[..taken]);
            let done = self.done.done(shard) + taken as u32;
            let advance = CursorAdvance { shard, done };
            self.done.advance(advance);
            advances.push(advance);
        }
        true
    }

    /// The first shard with samples left, from the next epochs if the queue has none.
    fn next_shard(&mut self) -> Option<ShardId> {
        loop {
            if let Some(shard) = self.queued_shard() {
                return Some(shard);
            }
            if self.next_epoch >= self.shared.epochs {
                return None;
            }
            let epoch = self.next_epoch;
            let own = self.open.shards_of(self.slot);
            self.queue.extend(own.map(|shard| ShardId { epoch, shard }));
            self.next_epoch += 1;
        }
    }

    /// The first shard of the queue with samples left; those without leave the queue.
    fn queued_shard(&mut self) -> Option<ShardId> {
        while let Some(&shard) = self.queue.front() {
            // The open plan may be of another epoch, but its lengths are right.
            if (self.done.done(shard) as usize) < self.open.samples(shard.shard).len() {
                return Some(shard);
            }
            self.queue.pop_front();
        }
        None
    }
}
