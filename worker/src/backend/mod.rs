//! Backends: the devices that compute (CPU or GPU). A backend owns arrays and does arithmetic on them. The worker's use
//! of its two copies of the weights, step by step, is the same on all backends and lies in [`replica`].

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod replica;
mod residual;
pub(crate) mod speed;
mod turns;

use std::borrow::Cow;
use std::ops::Range as Indices;
use std::time::Duration;

use protocol::job::optimiser::Muon;
use protocol::weights::dense::Dense;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::{Range, Tau};
use protocol::weights::sums::Sums;

use crate::learning::optimiser::{Factors, Formula};
use crate::trainer::TrainError;
use protocol::weights::contribution::Contribution;

/// An array of a backend that holds one number per weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Array {
    /// The worker's own weights, at which gradients are computed.
    Own,
    /// The shared weights.
    Shared,
    /// The optimiser's first state array, if its rule has one.
    First,
    /// The optimiser's second state array, if its rule has one.
    Second,
}

/// Settings of one optimiser pass over the weights.
#[derive(Clone, Debug)]
pub struct Update {
    /// Formula that turns a gradient into an update.
    pub(crate) formula: Formula,
    /// Coefficients of the formula in this step.
    pub(crate) factors: Factors,
    /// Largest norm of the gradient: a longer gradient is scaled down to it.
    pub(crate) clip: Option<f64>,
    /// If set, the gradient is made orthogonal first, and the formula moves the weights along the result.
    pub(crate) orthogonal: Option<Orthogonal>,
    /// Comparison of the own with the shared weights; without it no changes leave.
    pub(crate) compare: Option<Compare>,
}

/// Settings for making a gradient orthogonal (Muon).
#[derive(Clone, Copy, Debug)]
pub struct Orthogonal {
    pub(crate) muon: Muon,
    /// Number of the step, from 1.
    pub(crate) step: u64,
}

/// Settings of a comparison of the own with the shared weights.
#[derive(Clone, Debug)]
pub struct Compare {
    /// Distance between a weight's two copies from which on a change leaves.
    pub(crate) tau: Tau,
    /// Look-ahead of the own weights, as a multiple of the optimiser's velocity.
    pub(crate) ahead: f32,
    /// Indices of the weights to compare: whole blocks.
    pub(crate) turn: Indices<usize>,
    /// True if small tensors are compared, too, wherever they lie.
    pub(crate) eager: bool,
}

/// Result of an optimiser pass.
#[derive(Clone, Copy, Debug)]
pub struct Updated {
    /// The mean loss of the minibatch.
    pub(crate) loss: f32,
    /// Tells whether all shared weights are still within the safe range after the pass.
    pub(crate) range: Range,
    /// Thread time spent on making the gradient orthogonal.
    pub(crate) directions: Duration,
    /// Thread time spent on the comparison, if the backend can measure it.
    pub(crate) exchange: Option<Duration>,
}

/// A device's arrays and arithmetic. A backend knows nothing of turns, look-ahead or saved state: [`replica::Replica`]
/// manages those.
pub trait Backend {
    /// True if the device works asynchronously, so that the host can do something else between gradient and update.
    const WORKS_ALONE: bool;

    /// The number of weights.
    fn weights(&self) -> usize;

    /// Computes the gradient of a minibatch at the own weights, or starts to. `key` seeds dropout.
    fn gradient(&mut self, samples: &[u32], key: u64) -> Result<(), TrainError>;

    /// Moves the own weights by the newest gradient, compares them with the shared ones, replaces the contents of
    /// `changes` by the changes that leave, and applies these to the shared weights. If a value is not finite or out of
    /// range, the call fails and leaves the shared weights unchanged.
    fn update(&mut self, update: &Update, changes: &mut Vec<u32>) -> Result<Updated, TrainError>;

    /// Replaces the contents of `changes` by the changes that leave at the present weights, without an update, and
    /// applies them to the shared weights.
    fn release(&mut self, compare: &Compare, changes: &mut Vec<u32>) -> Result<Range, TrainError>;

    /// Moves the shared weights of a window towards the own ones by a fraction (`contribution`) of their difference,
    /// and returns the movement of each in lattice steps. `ahead` is the look-ahead of the own weights. If the
    /// contribution is not the whole difference, the own weights are moved back to where they would be had all workers
    /// moved as far. If a value is not finite or out of range, the call fails and changes nothing.
    fn take(
        &mut self,
        window: Indices<usize>,
        ahead: f32,
        contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError>;

    /// Adds other workers' checked changes to both copies. A backend may delay this, but applies changes in order and
    /// before anything reads the weights. The returned range may be that of the last step.
    fn apply(&mut self, changes: &[u32], tau: Tau) -> Result<Range, TrainError>;

    /// Moves weights by whole lattice steps, exactly, in both copies. It may be delayed like [`Backend::apply`].
    fn jump(&mut self, sums: &Sums) -> Result<Range, TrainError>;

    /// Moves neighbouring weights, nearly all of which move, by whole lattice steps in both copies, like
    /// [`Backend::jump`].
    fn shift(&mut self, dense: &Dense) -> Result<Range, TrainError> {
        self.jump(&Sums::from(dense))
    }

    /// Returns the digest of the shared weights, or `None` if one has left the lattice.
    fn digest(&self) -> Result<Option<Digest>, TrainError>;

    /// Returns the residual of every `step`-th weight. `ahead` is the look-ahead of the own weights.
    fn residuals(&self, step: usize, ahead: f32) -> Result<Vec<f32>, TrainError>;

    /// Returns all numbers of an array.
    fn read(&self, array: Array) -> Result<Cow<'_, [f32]>, TrainError>;

    /// Replaces all numbers of an array.
    fn write(&mut self, array: Array, values: Vec<f32>) -> Result<(), TrainError>;

    /// Bytes of GPU memory that the backend holds.
    fn gpu_memory(&self) -> u64 {
        0
    }

    /// Returns the time that the host has waited for the GPU since the last call.
    fn gpu_time(&mut self) -> Duration {
        Duration::ZERO
    }
}
