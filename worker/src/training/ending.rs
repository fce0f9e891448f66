//! How a worker's training ends: at once, or with the weights that were measured.
//!
//! A model is the sum of its batches, so weights of a while ago come back as one more batch: what has happened since, taken
//! back. It is made when no worker makes batches any more; then all replicas are the weights that were measured.

use protocol::log::batch::Payload;
use protocol::weights::encoding::DENSE_MAX;
use protocol::weights::lattice::Range;

use super::farewell::Farewell;
use crate::emission::Leaving;
use crate::trainer::quantise::Reached;
use crate::trainer::{TrainError, Trainer, difference};

/// Whether a worker trains, and if not, what it does instead.
#[derive(Debug)]
pub(super) enum Ending {
    /// It trains, as long as there is something to train.
    No,
    /// It takes no further step, and waits for an order to stop or to go back.
    StandingBy,
    /// It moves back to these weights, a window after the other.
    Back { weights: Vec<f32>, next: usize },
    /// It takes no further step. The run goes on without it, and it lets out what it has learned.
    Leaving(Farewell),
    /// It takes no further step.
    Stop,
    /// It cannot take any, and leaves its remaining samples to others.
    GaveUp,
}

impl Ending {
    /// No further steps: the run is to end.
    pub(super) fn stop(&mut self) {
        if !matches!(self, Self::Back { .. }) {
            *self = Self::Stop;
        }
    }

    /// No further steps, but the origin stays open.
    pub(super) fn stand_by(&mut self) {
        if matches!(self, Self::No) {
            *self = Self::StandingBy;
        }
    }

    /// No further steps: the weights move back to these, which they were before. A worker that was told to stop does so.
    pub(super) fn go_back(&mut self, weights: Vec<f32>) {
        if matches!(self, Self::StandingBy) {
            *self = Self::Back { weights, next: 0 };
        }
    }

    /// No further steps here: the worker leaves a run that goes on.
    pub(super) fn leave(&mut self) {
        if matches!(self, Self::No) {
            *self = Self::Leaving(Farewell::default());
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self, Self::Leaving(_))
    }

    /// Whether the worker waits for an order to stop or to go back.
    pub(super) fn stands_by(&self) -> bool {
        matches!(self, Self::StandingBy)
    }

    /// Whether the worker's last batch ends the run for all: not if the run goes on without this worker.
    pub(super) fn stops_the_run(&self) -> bool {
        self.is_ending() && !matches!(self, Self::GaveUp | Self::Leaving(_))
    }

    /// Whether no further step is taken.
    pub(super) fn is_ending(&self) -> bool {
        !matches!(self, Self::No)
    }

    /// Takes what leaves next without a step, if anything does; it is applied already. A leaving worker lets out its
    /// residual only where it `keeps_residual`.
    pub(super) fn next<T: Trainer>(
        &mut self,
        trainer: &mut T,
        keeps_residual: bool,
    ) -> Result<Option<Leaving>, TrainError> {
        match self {
            Self::Back { weights, next } => {
                let (window, left) = restore_next_window(trainer, weights, *next)?;
                *next = window;
                Ok(left)
            }
            Self::Leaving(farewell) if keeps_residual => farewell.next(trainer),
            Self::Leaving(_) | Self::StandingBy | Self::Stop | Self::GaveUp | Self::No => Ok(None),
        }
    }
}

/// Moves the first window at or after `from` that differs from the weights to restore. Returns the index from which the
/// next call goes on, and what leaves, or `None` if all weights are restored. A window that is further away than one
/// batch can say is moved again by the next call.
fn restore_next_window<T: Trainer>(
    trainer: &mut T,
    weights: &[f32],
    from: usize,
) -> Result<(usize, Option<Leaving>), TrainError> {
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
