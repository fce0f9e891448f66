//! The facts about a run's samples that every worker knows.

use std::sync::Arc;

use protocol::job::Trainers;
use protocol::job::split::{SLOTS_MAX, Split};

use crate::sampling::shards::ShardPlan;

/// Settings of the sample plan that all slots of a run agree on. They determine the samples in every shard of every
/// epoch.
#[derive(Clone, Debug)]
pub struct SharedPlan {
    pub split: Split,
    pub seed: u64,
    /// Class label of every sample.
    pub labels: Arc<[u32]>,
    /// Number of worker slots that samples are dealt to at the beginning; later workers have slots without samples.
    pub slots: usize,
    /// True if the order within a shard interleaves its classes in proportion.
    pub balanced: bool,
    /// True if each slot keeps the samples that it was dealt in the first epoch.
    pub dealt_once: bool,
    /// Number of times that every sample is trained.
    pub epochs: u32,
    /// Samples per minibatch.
    pub minibatch: usize,
    /// True if a slot learns which shards other slots have begun only when it has sent a batch, as in rounds of an
    /// epoch. Then only right after a batch does it take over shards that others may have begun.
    pub claims_after_batches: bool,
    /// Number of workers that train at the same time: those of the lowest slots that have one. The others take over no
    /// shards.
    pub trainers: Trainers,
    /// Number of workers that began the run. Their slots come first; those of later workers are higher.
    pub founders: usize,
}

impl SharedPlan {
    /// Checks that the plan has slots and a minibatch size, and that 32-bit numbers can count its samples and shards.
    pub(super) fn check(&self, slot: usize) -> Result<(), PlanError> {
        if self.slots == 0 {
            return Err(PlanError::NoSlots);
        }
        if slot > SLOTS_MAX {
            return Err(PlanError::TooManySlots(slot));
        }
        if self.slots > SLOTS_MAX {
            return Err(PlanError::TooManySlots(self.slots));
        }
        if self.minibatch == 0 {
            return Err(PlanError::EmptyMinibatch);
        }
        if u32::try_from(self.labels.len()).is_err() {
            return Err(PlanError::TooManySamples(self.labels.len()));
        }
        Ok(())
    }

    /// Returns the samples of each shard in an epoch. The plan must have been checked.
    pub(super) fn shard_plan(&self, epoch: u32) -> ShardPlan {
        let dealt = if self.dealt_once { 0 } else { epoch };
        ShardPlan::new(
            self.split,
            self.seed,
            epoch,
            dealt,
            &self.labels,
            self.slots,
            self.balanced,
        )
    }
}

/// Reason why a sample plan is refused: no worker can follow it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Plan refused: the run has no worker slots, so the samples have no owner.
    #[error("samples cannot be distributed: the run has no workers")]
    NoSlots,
    /// Plan refused: minibatches without samples would never end.
    #[error("a minibatch needs at least one sample")]
    EmptyMinibatch,
    /// Plan refused: more samples than a 32-bit number can count.
    #[error("{0} samples exceed the limit of {max} samples per run", max = u32::MAX)]
    TooManySamples(usize),
    /// Plan refused: more slots than a 32-bit number can count shards of.
    #[error("{0} slots exceed the limit of {max} slots (workers) per run", max = SLOTS_MAX)]
    TooManySlots(usize),
}
