//! How a worker's training ends: at once, or with the weights that were measured.
//!
//! A model is the sum of its batches, so weights of a while ago come back as one more batch: what has happened since, taken
//! back. It is made when nobody else makes batches any more; then all replicas are the weights that were measured.

use protocol::batch::{OriginStatus, Payload};
use protocol::encoding::DENSE_MAX;
use protocol::lattice::Range;

use super::farewell::Farewell;
use super::{Next, Step, Training, TrainingError};
use crate::difference;
use crate::emission::Leaving;
use crate::quantise::Reached;
use crate::trainer::Trainer;

/// Whether a worker trains, and if not, what it does instead.
#[derive(Debug, Default)]
pub(super) enum Ending {
    /// It trains, as long as there is something to train.
    #[default]
    No,
    /// It takes no further step, and waits to be told what comes of that.
    StandingBy,
    /// It moves back to these weights, a window after the other.
    Back { weights: Vec<f32>, next: usize },
    /// It takes no further step. The run goes on without it, and it lets out what it has learned.
    Leaving(Farewell),
    /// It takes no further step.
    Stop,
    /// It cannot take any, and leaves what it has left to others.
    GaveUp,
}

impl<T: Trainer> Training<T> {
    /// No further steps: the run is to end.
    pub fn stop(&mut self) {
        if !matches!(self.ending, Ending::Back { .. }) {
            self.ending = Ending::Stop;
        }
    }

    /// No further steps, but the origin stays open.
    pub fn stand_by(&mut self) {
        if matches!(self.ending, Ending::No) {
            self.ending = Ending::StandingBy;
        }
    }

    /// No further steps: the weights move back to these, which they were before. Who was told to stop does so.
    pub fn go_back(&mut self, weights: Vec<f32>) {
        if matches!(self.ending, Ending::StandingBy) {
            self.ending = Ending::Back { weights, next: 0 };
        }
    }

    /// No further steps here: this worker leaves a run that goes on.
    pub fn leave(&mut self) {
        if matches!(self.ending, Ending::No) {
            self.ending = Ending::Leaving(Farewell::default());
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.ending, Ending::Leaving(_))
    }

    pub(super) fn is_ending(&self) -> bool {
        !matches!(self.ending, Ending::No)
    }

    /// A worker that does not train goes on to end.
    pub(super) fn end(&mut self, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        match &mut self.ending {
            Ending::StandingBy => Ok(Next::Waiting),
            Ending::Back { weights, next } => {
                let (window, left) = restore_next_window(&mut self.trainer, weights, *next)?;
                *next = window;
                match left {
                    Some(left) => self.emit_rest(left, encoded).map(Next::Emitted),
                    None => Ok(Next::Done),
                }
            }
            Ending::Leaving(farewell) if self.emission.keeps_residual() => match farewell.next(&mut self.trainer)? {
                Some(left) => self.emit_rest(left, encoded).map(Next::Emitted),
                None => Ok(Next::Done),
            },
            Ending::Leaving(_) | Ending::Stop | Ending::GaveUp | Ending::No => Ok(Next::Done),
        }
    }

    /// Writes a batch that leaves without a step.
    pub(super) fn emit_rest(&mut self, left: Leaving, encoded: &mut Vec<u8>) -> Result<Step, TrainingError> {
        let mut step = Step::without_samples(self.staleness());
        step.left(&left);
        self.seen = self.batches_applied;
        self.write_batch(left.payload, OriginStatus::default(), encoded)?;
        Ok(step)
    }
}

/// Moves the first window at or after `from` that differs from the weights to restore. Returns the index from which the
/// next call goes on, and what leaves, or `None` if all weights are restored. A window that is further away than one
/// batch can say is moved again by the next call.
fn restore_next_window<T: Trainer>(
    trainer: &mut T,
    weights: &[f32],
    from: usize,
) -> Result<(usize, Option<Leaving>), TrainingError> {
    let mut shared = trainer.copy_weights()?;
    for first in (from..weights.len()).step_by(DENSE_MAX) {
        let window = first..(first + DENSE_MAX).min(weights.len());
        let (dense, range) = difference::take(Reached::exactly(&weights[window.clone()]), &mut shared[window], first)?;
        if dense.steps().iter().any(|&steps| steps != 0) {
            let range: Range = range.max(trainer.shift(&dense)?);
            let payload = Payload::Dense(dense);
            return Ok((first, Some(Leaving { payload, range })));
        }
    }
    Ok((weights.len(), None))
}
