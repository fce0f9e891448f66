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

/// One of a backend's arrays that hold one number per weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Array {
    /// The worker's own weights, which move in every step; gradients are computed at them.
    Own,
    /// The shared weights, which only batches move.
    Shared,
    /// The optimiser's first array of state per weight (such as velocities), if its rule has one.
    First,
    /// The optimiser's second array of state per weight (such as squares), if its rule has one.
    Second,
}

/// Settings of one optimiser pass over the weights.
#[derive(Clone, Debug)]
pub struct Update {
    /// Optimiser's formula that turns a gradient into an update.
    pub(crate) formula: Formula,
    /// Coefficients of the optimiser's formula in this step.
    pub(crate) factors: Factors,
    /// Largest norm of the gradient: a longer gradient is scaled down to it.
    pub(crate) clip: Option<f64>,
    /// Muon's settings: if set, the gradient is made orthogonal first, and the formula moves the weights along the
    /// result.
    pub(crate) orthogonal: Option<Orthogonal>,
    /// Comparison of the own with the shared weights, which finds the changes to emit; without it a step emits none.
    pub(crate) compare: Option<Compare>,
}

/// Settings for making a gradient orthogonal (Muon).
#[derive(Clone, Copy, Debug)]
pub struct Orthogonal {
    pub(crate) muon: Muon,
    /// Number of the training step, from 1.
    pub(crate) step: u64,
}

/// Settings of a comparison of the own with the shared weights, which finds the changes to emit.
#[derive(Clone, Debug)]
pub struct Compare {
    /// Distance between a weight's own and shared copy from which on a change is emitted.
    pub(crate) tau: Tau,
    /// Look-ahead of the own weights: the multiple of the velocity by which they are ahead of the optimiser's weights.
    pub(crate) ahead: f32,
    /// Indices of the weights that the step compares with the shared copy: whole blocks.
    pub(crate) turn: Indices<usize>,
    /// True if the step compares small tensors with the shared copy, too, wherever they lie.
    pub(crate) eager: bool,
}

/// Minibatch of the next step, whose gradient a device that works asynchronously begins to compute behind an update.
#[derive(Clone, Copy, Debug)]
pub struct Announced<'a> {
    pub samples: &'a [u32],
    /// Seed of dropout in the next step.
    pub key: u64,
}

/// Result of an optimiser pass over all weights.
#[derive(Clone, Copy, Debug)]
pub struct Updated {
    /// The mean loss of the minibatch.
    pub(crate) loss: f32,
    /// Tells if all shared weights are still within the safe range after the pass.
    pub(crate) range: Range,
    /// Thread time spent on making the gradient orthogonal (Muon).
    pub(crate) directions: Duration,
    /// Thread time spent on comparing own and shared weights, if the backend can measure it.
    pub(crate) exchange: Option<Duration>,
}

/// A device's arrays and arithmetic for training a model. Backends know nothing of turns (the weights that a step
/// compares), look-ahead or saved state: [`replica::Replica`] manages those.
pub trait Backend {
    /// True if the device works asynchronously, so that the host can do something else between gradient and update.
    const WORKS_ALONE: bool;

    fn weights(&self) -> usize;

    /// Computes the gradient of a minibatch at the own weights or, on a device that works asynchronously, starts to.
    /// `key` is the seed of dropout.
    fn gradient(&mut self, samples: &[u32], key: u64) -> Result<(), TrainError>;

    /// Moves the own weights by the newest gradient, compares them with the shared ones, replaces the contents of
    /// `changes` by the changes to emit, and applies these to the shared weights. If a value is not finite or out of
    /// range, the call fails and leaves the shared weights unchanged.
    fn update(
        &mut self,
        update: &Update,
        next: Option<Announced<'_>>,
        changes: &mut Vec<u32>,
    ) -> Result<Updated, TrainError>;

    /// Compares the own with the shared weights without an update, replaces the contents of `changes` by the changes to
    /// emit, and applies these to the shared weights. Returns the result of the range check of the shared weights.
    fn release(&mut self, compare: &Compare, changes: &mut Vec<u32>) -> Result<Range, TrainError>;

    /// Moves the shared weights of a window (a range of indices) towards the own ones by a fraction (`contribution`) of
    /// their difference, and returns the movement of each as a multiple of the step between two neighbouring values.
    /// `ahead` is the look-ahead of the own weights. If the contribution is not the whole difference, the own weights
    /// are moved back to where they would be had all workers moved as far. If a value is not finite or out of range,
    /// the call fails and changes nothing.
    fn take(
        &mut self,
        window: Indices<usize>,
        ahead: f32,
        contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError>;

    /// Adds the weight changes of another worker's batch, which have been checked, to the own and the shared weights. A
    /// backend may delay this, but applies changes in order and before anything reads the weights. Returns the result
    /// of the range check of the weights, which may be that of the last step.
    fn apply(&mut self, changes: &[u32], tau: Tau) -> Result<Range, TrainError>;

    /// Moves own and shared weights alike by a sum of batches: exactly, because each movement is a multiple of the step
    /// between two neighbouring values of a shared weight. A backend may delay this like [`Backend::apply`].
    fn jump(&mut self, sums: &Sums) -> Result<Range, TrainError>;

    /// Does the same as [`Backend::jump`] with the movements of a range of neighbouring weights, nearly all of which
    /// move.
    fn shift(&mut self, dense: &Dense) -> Result<Range, TrainError> {
        self.jump(&Sums::from(dense))
    }

    /// Computes the digest (checksum) of the shared weights, which must equal the one that the applied batches imply;
    /// `None` if a weight is no multiple of the step between two neighbouring values.
    fn digest(&self) -> Result<Option<Digest>, TrainError>;

    /// Returns the residual (own minus shared copy) of every `step`-th weight. `ahead` is the look-ahead of the own
    /// weights.
    fn residuals(&self, step: usize, ahead: f32) -> Result<Vec<f32>, TrainError>;

    /// Returns all numbers of one of the backend's arrays.
    fn read(&self, array: Array) -> Result<Cow<'_, [f32]>, TrainError>;

    /// Replaces all numbers of one of the backend's arrays.
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
