//! Passes: between two rounds a worker goes on from the mean of those before it in a chain of workers.
//!
//! Only its own weights move. What it has come to since the last round stays its difference from the shared weights, and
//! goes into the next round: means of differences are differences as well.

use std::sync::Arc;

use protocol::dense::Dense;
use protocol::encoding::{self, DENSE_MAX};
use protocol::lattice::LATTICE_STEP;
use protocol::wire::prefix::{Prefix, PrefixHead};

use super::{Next, Step, Training, TrainingError};
use crate::difference;
use crate::trainer::{TrainError, Trainer, TrainerState};

impl<T: Trainer> Training<T> {
    /// Has come to a pass: writes what it adds, and waits.
    pub(super) fn pass_on(&mut self, step: Step, encoded: &mut Vec<u8>) -> Result<Next, TrainingError> {
        let TrainerState { arrays, .. } = self.trainer.state()?;
        let pass = self.round.begin_pass();
        let (first, residual) = window(&arrays, pass);
        let dense = difference::of_residual(residual, first).ok_or(TrainError::NotFinite)?;
        let mut steps = Vec::new();
        encoding::write_dense(&dense, &mut steps);
        let prefix = Prefix {
            head: PrefixHead {
                pass,
                shared: self.expected,
                from: self.identity.origin,
                to: self.identity.origin,
                count: 1,
            },
            steps: Arc::from(steps),
        };
        let contents = prefix.encode().map_err(|error| TrainError::Device(error.to_string()))?;
        encoded.extend(contents);
        Ok(Next::Passed(step))
    }

    /// Goes on with a pass, from the mean of so many workers' differences if there is one.
    pub fn go_on_passing(&mut self, prefix: Option<&(Dense, u32)>) -> Result<(), TrainingError> {
        let Some((sum, count)) = prefix.filter(|_| self.round.end_pass()) else {
            self.round.end_pass();
            return Ok(());
        };
        let TrainerState { numbers, mut arrays } = self.trainer.state()?;
        let place = sum.first() as usize..sum.first() as usize + sum.steps().len();
        // The residual is in two parts, of which the second is what the first cannot hold.
        let [residual, rest, ..] = &mut arrays[..] else {
            return Ok(());
        };
        if let Some(rest) = rest.get_mut(place.clone()) {
            rest.fill(0.0);
        }
        let scale = LATTICE_STEP / (*count).max(1) as f32;
        for (residual, &steps) in residual.get_mut(place).into_iter().flatten().zip(sum.steps()) {
            *residual = steps as f32 * scale;
        }
        let state = TrainerState { numbers, arrays };
        let restored = self.trainer.restore(state);
        restored.map_err(|error| TrainError::Device(error.to_string()).into())
    }
}

/// The part of a residual that a pass is about, and where it begins: of a large model another part in each pass.
fn window(arrays: &[Vec<f32>], pass: u64) -> (usize, &[f32]) {
    let residual = arrays.first().map_or(&[][..], |residual| residual);
    let windows = residual.len().div_ceil(DENSE_MAX).max(1);
    let first = (pass % windows as u64) as usize * DENSE_MAX;
    (first, &residual[first..(first + DENSE_MAX).min(residual.len())])
}
