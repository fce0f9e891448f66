//! The ending of a worker's training: at once, or by a return to measured weights.
//!
//! A model is the sum of its batches, so a return to earlier weights is one more batch, which takes back all later
//! changes. It is made when no worker makes other batches any more; then all replicas have the measured weights.

use protocol::log::batch::Payload;
use protocol::weights::encoding::DENSE_MAX;
use protocol::weights::lattice::Range;

use super::farewell::Farewell;
use crate::emission::Leaving;
use crate::trainer::quantise::Reached;
use crate::trainer::{TrainError, Trainer, difference};

/// State of a worker's training with respect to its end: training, or one of several ways to end.
#[derive(Debug)]
pub(super) enum Ending {
    /// State of training: no end is ordered, so the worker trains as long as there are samples.
    No,
    /// State of training: the worker takes no further step, and waits for an order to stop or to go back to earlier
    /// weights.
    StandingBy,
    /// State of training: the run ends with earlier weights, to which the worker moves its weights, one window after
    /// the other.
    Back { weights: Vec<f32>, next: usize },
    /// State of training: the worker takes no further step and emits what it has learned. The run goes on without it.
    Leaving(Farewell),
    /// State of training: the worker takes no further step, because the run is to end.
    Stop,
    /// State of training: the worker's pipeline cannot train; its remaining samples are left to others.
    GaveUp,
}

impl Ending {
    /// Makes the worker take no further step, because the run is to end.
    pub(super) fn stop(&mut self) {
        if !matches!(self, Self::Back { .. }) {
            *self = Self::Stop;
        }
    }

    /// Makes the worker take no further step and wait for an order to stop or to go back. Its stream of batches stays
    /// open.
    pub(super) fn stand_by(&mut self) {
        if matches!(self, Self::No) {
            *self = Self::StandingBy;
        }
    }

    /// Makes a worker that stands by move the weights back to these earlier ones. Ignored by a worker that was told to
    /// stop.
    pub(super) fn go_back(&mut self, weights: Vec<f32>) {
        if matches!(self, Self::StandingBy) {
            *self = Self::Back { weights, next: 0 };
        }
    }

    /// Makes the worker take no further step, because it leaves a run that goes on.
    pub(super) fn leave(&mut self) {
        if matches!(self, Self::No) {
            *self = Self::Leaving(Farewell::default());
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        matches!(self, Self::Leaving(_))
    }

    /// True if the worker waits for an order to stop or to go back.
    pub(super) fn stands_by(&self) -> bool {
        matches!(self, Self::StandingBy)
    }

    /// True if the worker's last batch ends the run for all: not if the run goes on without this worker.
    pub(super) fn stops_the_run(&self) -> bool {
        self.is_ending() && !matches!(self, Self::GaveUp | Self::Leaving(_))
    }

    pub(super) fn is_ending(&self) -> bool {
        !matches!(self, Self::No)
    }

    /// Takes the contents of an ending worker's next batch, which leaves without a training step and is applied
    /// already; `None` if nothing is left to send. A leaving worker emits its residual only if the emission
    /// `keeps_residual`.
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

/// Moves the weights of one window, the first at or after `from` that differs, to the earlier weights that are
/// restored. Returns the index from which the next call goes on, and the batch's contents, or `None` if all weights are
/// restored. A window that is further away than one batch can encode is moved again by the next call.
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
