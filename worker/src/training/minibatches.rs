//! The minibatches that a worker has chosen: the present one, and later ones that were chosen early.

use std::collections::VecDeque;

use protocol::log::cursor::CursorAdvance;

use crate::sampling::plan::SamplePlan;

/// Samples that are trained together in one step, and the shard positions that count them as done.
#[derive(Debug, Default)]
pub(super) struct Minibatch {
    pub(super) indices: Vec<u32>,
    pub(super) cursors: Vec<CursorAdvance>,
    /// Number of batches in the weights when a device or a pipeline began with the minibatch; `None` if none has.
    begun_at: Option<u64>,
}

/// Minibatches that a worker has chosen from its sample plan: the present one, and later ones that were chosen early.
#[derive(Debug, Default)]
pub(super) struct Minibatches {
    /// True if the samples of chosen minibatches count as not done until they are trained: in a pipeline a minibatch
    /// may be lost.
    are_outstanding: bool,
    present: Minibatch,
    /// True if the present minibatch is chosen and not trained yet.
    is_chosen: bool,
    /// Minibatches after the present one that were chosen early because a device or a pipeline may begin them, in their
    /// order.
    upcoming: VecDeque<Minibatch>,
}

impl Minibatches {
    /// Creates the minibatches of a worker that leads a pipeline.
    pub(super) fn of_pipeline() -> Self {
        Self {
            are_outstanding: true,
            ..Self::default()
        }
    }

    pub(super) fn present(&self) -> &Minibatch {
        &self.present
    }

    /// Returns the minibatches after the present one that were chosen early, in their order.
    pub(super) fn upcoming(&self) -> impl Iterator<Item = &Minibatch> {
        self.upcoming.iter()
    }

    /// True if a minibatch is chosen and still to be trained.
    pub(super) fn is_chosen(&self) -> bool {
        self.is_chosen || !self.upcoming.is_empty()
    }

    /// Takes the number of batches in the weights when the present minibatch was begun, if it was begun early.
    pub(super) fn take_begun_at(&mut self) -> Option<u64> {
        self.present.begun_at.take()
    }

    /// Moves on to the next minibatch, which takes samples from at most `cursors_max` shards. Returns `false` if there
    /// is none now.
    pub(super) fn advance(&mut self, plan: &mut SamplePlan, cursors_max: usize) -> bool {
        if std::mem::take(&mut self.is_chosen) {
            return true;
        }
        if let Some(next) = self.upcoming.pop_front() {
            self.present = next;
            return true;
        }
        choose(plan, cursors_max, self.are_outstanding, &mut self.present)
    }

    /// Chooses the minibatch after the present one, so that a device can begin with it right behind that one. Returns
    /// its samples, if there are any.
    pub(super) fn choose_early(&mut self, plan: &mut SamplePlan, cursors_max: usize, batches: u64) -> Option<&[u32]> {
        let mut next = Minibatch {
            begun_at: Some(batches),
            ..Minibatch::default()
        };
        if choose(plan, cursors_max, self.are_outstanding, &mut next) {
            self.upcoming.push_back(next);
        }
        self.upcoming.back().map(|next| &*next.indices)
    }

    /// Chooses minibatches that a pipeline may begin before the present one is done, until there are `count`. Together
    /// with the present one they advance at most `cursors_left` shards.
    pub(super) fn choose_ahead(
        &mut self,
        plan: &mut SamplePlan,
        count: usize,
        cursors_max: usize,
        cursors_left: usize,
        batches: u64,
    ) {
        while self.upcoming.len() < count {
            let chosen = self.upcoming.iter().chain([&self.present]);
            let taken: usize = chosen.map(|minibatch| minibatch.cursors.len()).sum();
            let cursors_max = cursors_max.min(cursors_left.saturating_sub(taken));
            let mut next = Minibatch {
                begun_at: Some(batches),
                ..Minibatch::default()
            };
            if cursors_max == 0 || !choose(plan, cursors_max, self.are_outstanding, &mut next) {
                return;
            }
            self.upcoming.push_back(next);
        }
    }

    /// Marks the present minibatch, which could not be trained, to be trained again.
    pub(super) fn failed(&mut self) {
        self.is_chosen = true;
    }

    /// Forgets all chosen minibatches, because other workers have trained their samples.
    pub(super) fn forget(&mut self) {
        self.is_chosen = false;
        self.upcoming.clear();
    }
}

/// Takes a minibatch from the sample plan. With `is_outstanding`, its samples count as not done until they are trained.
/// Returns `false` if there is none now.
fn choose(plan: &mut SamplePlan, cursors_max: usize, is_outstanding: bool, into: &mut Minibatch) -> bool {
    let is_one = plan.next_minibatch(cursors_max, &mut into.indices, &mut into.cursors);
    if is_one && is_outstanding {
        plan.add_outstanding(&into.cursors);
    }
    is_one
}
