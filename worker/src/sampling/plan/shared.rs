//! What every worker of a run knows of its samples.

use std::sync::Arc;

use protocol::job::Trainers;
use protocol::job::split::{SLOTS_MAX, Split};

use crate::sampling::shards::ShardPlan;

/// What all slots of a run agree on: it settles which samples every shard of every epoch holds.
#[derive(Clone, Debug)]
pub struct SharedPlan {
    /// How samples are shared out.
    pub split: Split,
    /// The seed of the run.
    pub seed: u64,
    /// The label of every sample.
    pub labels: Arc<[u32]>,
    /// The number of worker slots in the cluster.
    pub slots: usize,
    /// Whether shards interleave their classes in proportion.
    pub balanced: bool,
    /// Whether the first epoch's owners keep their samples.
    pub dealt_once: bool,
    /// How often every sample is trained.
    pub epochs: u32,
    /// Samples per minibatch.
    pub minibatch: usize,
    /// Whether slots take over what others may have begun only when a batch has just left. Where others are heard of once in
    /// an epoch, that is when it is known what they have begun.
    pub claims_after_batches: bool,
    /// The number of slots that train at the same time, the lowest that have a worker. The others claim nothing.
    pub trainers: Trainers,
    /// The slots of the workers that began the run; those of later workers are higher.
    pub founders: usize,
}

impl SharedPlan {
    /// Finds what would keep a slot from following the plan.
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

    /// The shards of an epoch. The plan must have been checked.
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

/// A plan that no worker can follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nobody's samples.
    #[error("samples cannot be distributed: the run has no workers")]
    NoSlots,
    /// Minibatches without samples would never end.
    #[error("a minibatch needs at least one sample")]
    EmptyMinibatch,
    /// Samples travel as 32-bit numbers.
    #[error("{0} samples exceed the limit of {max} samples per run", max = u32::MAX)]
    TooManySamples(usize),
    /// Shards travel as 32-bit numbers.
    #[error("{0} slots exceed the limit of {max} slots (workers) per run", max = SLOTS_MAX)]
    TooManySlots(usize),
}
