//! What others have made, in this worker's weights.

use protocol::batch::{Batch, Header};
use protocol::bundle::Bundle;
use protocol::lattice::Range;
use protocol::sums::Sums;
use protocol::wire::attach::JumpOrder;

use super::{Training, TrainingError};
use crate::trainer::Trainer;

/// A weight that others' changes drive out of the range has diverged, though the node's ledger has applied the same changes:
/// this worker's own changes reach its weights before they reach the ledger.
impl<T: Trainer> Training<T> {
    /// Applies another origin's batch, which was decoded and so is valid.
    pub fn apply(&mut self, batch: &Batch) -> Result<Range, TrainingError> {
        self.count(&batch.header);
        Ok(self.trainer.add(&batch.payload)?)
    }

    /// Applies a batch from each of several other origins, as one.
    pub fn apply_bundle(&mut self, bundle: &Bundle) -> Result<Range, TrainingError> {
        bundle.headers.iter().for_each(|header| self.count(header));
        Ok(self.trainer.shift(&bundle.dense)?)
    }

    /// Moves the weights by what came other than as batches: the sum of many of them.
    pub fn jump(&mut self, sums: &Sums, order: &JumpOrder) -> Result<Range, TrainingError> {
        self.batches_applied += order.batches;
        self.samples_applied += order.samples;
        match order.origin {
            Some(origin) => self.plan.observe_many(origin, &order.cursors),
            None => self.plan.skip_done(&order.cursors),
        }
        self.expected += sums.digest();
        Ok(self.trainer.jump(sums)?)
    }

    /// Counts a batch of another origin.
    fn count(&mut self, header: &Header) {
        self.guard.observe(self.batches_applied.saturating_sub(header.seen));
        self.batches_applied += 1;
        self.samples_applied += u64::from(header.samples);
        self.plan.observe(header.origin, &header.cursors);
        self.expected += header.digest;
    }
}
