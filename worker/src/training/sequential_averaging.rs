//! Sequential averaging: between two rounds a worker goes on from the mean of its own weights and those of the workers
//! before it in a chain.
//!
//! Only its own weights move. Its difference from the shared weights since the last round stays, and goes into the next
//! round: means of differences are differences as well.

use std::sync::Arc;

use protocol::ids::OriginId;
use protocol::weights::dense::Dense;
use protocol::weights::digest::Digest;
use protocol::weights::encoding::{self, DENSE_MAX};
use protocol::weights::lattice::LATTICE_STEP;
use protocol::wire::prefix::{Prefix, PrefixHead};

use crate::trainer::{TrainError, TrainerState, difference};

/// Returns this worker's difference from the shared weights in the form of a sum, which grows from worker to worker in
/// a sequential averaging step. `shared` is the digest of the shared weights.
pub(super) fn own_prefix(
    state: &TrainerState,
    pass: u64,
    shared: Digest,
    origin: OriginId,
) -> Result<Prefix, TrainError> {
    let (first, residual) = window(&state.arrays, pass);
    let dense = difference::of_residual(residual, first).ok_or(TrainError::NotFinite)?;
    let mut steps = Vec::new();
    encoding::write_dense(&dense, &mut steps);
    Ok(Prefix {
        head: PrefixHead {
            pass,
            shared,
            from: origin,
            to: origin,
            count: 1,
        },
        steps: Arc::from(steps),
    })
}

/// Replaces the residual (own minus shared weights) in a window of weights by the mean of the workers' differences,
/// which is `sum` divided by `workers`. Returns `false` for a trainer without a residual.
pub(super) fn replace_by_mean(state: &mut TrainerState, sum: &Dense, workers: u32) -> bool {
    let place = sum.first() as usize..sum.first() as usize + sum.steps().len();
    // The second array of a residual holds its rounding remainders.
    let [residual, rest, ..] = &mut state.arrays[..] else {
        return false;
    };
    if let Some(rest) = rest.get_mut(place.clone()) {
        rest.fill(0.0);
    }
    let scale = LATTICE_STEP / workers.max(1) as f32;
    for (residual, &steps) in residual.get_mut(place).into_iter().flatten().zip(sum.steps()) {
        *residual = steps as f32 * scale;
    }
    true
}

/// Returns the window of a residual that a sequential averaging step covers, with its first weight. A large model has
/// several windows, which take turns.
fn window(arrays: &[Vec<f32>], pass: u64) -> (usize, &[f32]) {
    let residual = arrays.first().map_or(&[][..], |residual| residual);
    let windows = residual.len().div_ceil(DENSE_MAX).max(1);
    let first = (pass % windows as u64) as usize * DENSE_MAX;
    (first, &residual[first..(first + DENSE_MAX).min(residual.len())])
}
