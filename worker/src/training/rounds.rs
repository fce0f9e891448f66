//! Rounds: a worker that has let out its share waits until the others' are in the weights.

use protocol::batch::{Payload, Standing};
use protocol::wire::attach::GoOn;

use super::{Next, Step, Training, TrainingError};
use crate::trainer::Trainer;

/// How far a worker is in the rounds that all make together. Their numbers are labels: whoever has missed some goes on with
/// the newest.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The last one that it has come to.
    pub(super) number: u64,
    /// The newest that its node has heard of.
    newest: u64,
    /// It has come to that and waits for the others.
    pub(super) waits: bool,
    /// It has said that it has nothing to train.
    pub(super) is_idle: bool,
}

impl Round {
    /// A worker that comes to a run whose newest round is this.
    pub(super) fn begin(&mut self, newest: u64) {
        self.newest = newest;
    }

    /// The worker has come to its next round.
    pub(super) fn arrive(&mut self) {
        self.number = self.number.saturating_add(1).max(self.newest);
        self.waits = true;
    }

    fn go_on(&mut self, order: GoOn) -> bool {
        let is_meant = self.waits && order.round == self.number;
        if is_meant {
            self.waits = false;
            self.newest = order.newest;
        }
        is_meant
    }
}

impl<T: Trainer> Training<T> {
    /// Whether it has come to a round and waits for the others.
    #[must_use]
    pub fn waits_for_round(&self) -> bool {
        self.round.waits
    }

    /// All others that are waited for have come to this round.
    pub fn go_on(&mut self, order: GoOn) {
        if self.round.go_on(order) {
            self.emission.go_on(order.workers);
        }
    }

    /// Says once that there is nothing to train, so that nobody waits for the next round.
    pub(super) fn say_idle(&mut self, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        if !self.emission.waits() || std::mem::replace(&mut self.round.is_idle, true) {
            return Ok(Next::Waiting);
        }
        self.seen = self.batches_applied;
        let standing = Standing {
            idle: true,
            ..Standing::default()
        };
        self.write_batch(Payload::default(), standing, encoded)?;
        Ok(Next::Emitted(Step::without_samples(self.staleness())))
    }
}
