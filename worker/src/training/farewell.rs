//! The residual of a worker that leaves. It is emitted as dense batches, the windows with the largest residual first,
//! so that the least is lost if some do not reach the others in time.

use std::ops::Range;

use protocol::log::batch::Payload;
use protocol::weights::contribution::Contribution;

use crate::emission::Leaving;
use crate::trainer::{TrainError, Trainer};

/// Number of weights in one batch of a leaving worker's residual: about a hundred kilobytes on the wire.
const WINDOW: usize = 1 << 16;

/// Residual of a worker that leaves the run: what it has learned and not sent yet, divided into windows of weights.
#[derive(Debug, Default)]
pub(super) struct Farewell {
    /// Windows of weights that are still to be sent, the one with the smallest residual first; `None` before the first
    /// call of `next`.
    windows: Option<Vec<Range<usize>>>,
}

impl Farewell {
    /// Takes the window of weights with the largest remaining residual, to be sent as a batch.
    pub(super) fn next<T: Trainer>(&mut self, trainer: &mut T) -> Result<Option<Leaving>, TrainError> {
        let windows = match &mut self.windows {
            Some(windows) => windows,
            None => self.windows.insert(by_size(trainer)?),
        };
        while let Some(window) = windows.pop() {
            let (dense, range) = trainer.take(window, Contribution::ALL)?;
            // A residual of less than half a lattice step cannot leave.
            if dense.steps().iter().any(|&steps| steps != 0) {
                let payload = Payload::Dense(dense);
                return Ok(Some(Leaving { payload, range }));
            }
        }
        Ok(None)
    }
}

/// Divides the weights into windows and returns them by the size of their residual, the smallest first.
fn by_size<T: Trainer>(trainer: &T) -> Result<Vec<Range<usize>>, TrainError> {
    let state = trainer.state()?;
    let residual = state.arrays.first().map_or(&[][..], Vec::as_slice);
    let square = |part: &[f32]| part.iter().map(|&one| f64::from(one).powi(2)).sum::<f64>();
    let mut windows: Vec<(f64, Range<usize>)> = (0..residual.len())
        .step_by(WINDOW)
        .map(|first| first..(first + WINDOW).min(residual.len()))
        .map(|window| (square(&residual[window.clone()]), window))
        .collect();
    windows.sort_by(|one, other| one.0.total_cmp(&other.0));
    Ok(windows.into_iter().map(|(_, window)| window).collect())
}
