//! What computes: the CPU, or a GPU. A backend owns arrays and does arithmetic on them; what a worker does with its two
//! copies of the weights, step by step, is the same on all of them and lies in [`replica`].

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

/// One of the arrays of a backend, with a number for every weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Array {
    /// The worker's own weights, which gradients are computed at.
    Own,
    /// The shared weights.
    Shared,
    /// The optimiser's first array of state, where it keeps one.
    First,
    /// And its second.
    Second,
}

/// What an optimiser's pass over the weights is to do.
#[derive(Clone, Debug)]
pub struct Update {
    /// How a gradient becomes an update.
    pub(crate) formula: Formula,
    /// The numbers of this step.
    pub(crate) factors: Factors,
    /// The norm that the gradient is clipped to.
    pub(crate) clip: Option<f64>,
    /// The gradient is made orthogonal first, and the formula then moves the weights along it.
    pub(crate) orthogonal: Option<Orthogonal>,
    /// What is compared with the shared weights; without it nothing leaves.
    pub(crate) compare: Option<Compare>,
}

/// How a gradient is made orthogonal.
#[derive(Clone, Copy, Debug)]
pub struct Orthogonal {
    pub(crate) muon: Muon,
    /// The number of the step, from 1.
    pub(crate) step: u64,
}

/// A comparison of both copies.
#[derive(Clone, Debug)]
pub struct Compare {
    /// How far apart a weight's copies must be for it to change.
    pub(crate) tau: Tau,
    /// The multiple of the velocity that the own weights are ahead.
    pub(crate) ahead: f32,
    /// The weights whose turn it is: whole blocks.
    pub(crate) turn: Indices<usize>,
    /// Whether small tensors are compared whoever's turn it is.
    pub(crate) eager: bool,
}

/// What an optimiser's pass did.
#[derive(Clone, Copy, Debug)]
pub struct Updated {
    /// The mean loss of the minibatch.
    pub(crate) loss: f32,
    /// How far out the shared weights now are.
    pub(crate) range: Range,
    /// The thread time that making the gradient orthogonal took.
    pub(crate) directions: Duration,
    /// The thread time that comparing took, where the backend can tell.
    pub(crate) exchange: Option<Duration>,
}

/// What a worker computes with. It knows nothing of turns, of looking ahead, of what was saved: a replica tells it.
pub trait Backend {
    /// Whether it works by itself, so that its host can do something else between a gradient and the update.
    const WORKS_ALONE: bool;

    /// The number of weights.
    fn weights(&self) -> usize;

    /// Computes the gradient of a minibatch at the own weights, or begins to. The key decides dropout.
    fn gradient(&mut self, samples: &[u32], key: u64) -> Result<(), TrainError>;

    /// Moves the own weights by the newest gradient, compares, and replaces the contents of `changes` by the changes that
    /// leave, by which the shared weights are moved. A pass that fails for its numbers' sake moves no shared weight.
    fn update(&mut self, update: &Update, changes: &mut Vec<u32>) -> Result<Updated, TrainError>;

    /// The same without an update: what leaves as the weights stand.
    fn release(&mut self, compare: &Compare, changes: &mut Vec<u32>) -> Result<Range, TrainError>;

    /// Moves the shared weights of a window by a fraction of the way to what the own ones have come to, which are so far ahead,
    /// and says by how many steps each has moved. What is not all of the way is taken back from the own ones. What fails
    /// for its numbers' sake moves nothing.
    fn take(
        &mut self,
        window: Indices<usize>,
        ahead: f32,
        contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError>;

    /// Adds others' checked changes to both copies. A backend may delay this, but must have done it, in order, before
    /// anything reads the weights. The returned range may be that of the last step.
    fn apply(&mut self, changes: &[u32], tau: Tau) -> Result<Range, TrainError>;

    /// Moves weights by whole steps, exactly, in both copies; as late as [`Backend::apply`].
    fn jump(&mut self, sums: &Sums) -> Result<Range, TrainError>;

    /// The same for neighbouring weights, nearly all of which move.
    fn shift(&mut self, dense: &Dense) -> Result<Range, TrainError> {
        self.jump(&Sums::from(dense))
    }

    /// The digest of the shared weights; `None` if one has left the lattice.
    fn digest(&self) -> Result<Option<Digest>, TrainError>;

    /// What has not been emitted, of every so many-th weight, with the own weights so far ahead.
    fn residuals(&self, step: usize, ahead: f32) -> Result<Vec<f32>, TrainError>;

    /// All numbers of an array.
    fn read(&self, array: Array) -> Result<Cow<'_, [f32]>, TrainError>;

    /// Replaces all numbers of an array.
    fn write(&mut self, array: Array, values: Vec<f32>) -> Result<(), TrainError>;

    /// Bytes of a GPU's memory that it holds.
    fn gpu_memory(&self) -> u64 {
        0
    }

    /// How long the host has waited for a GPU since it asked last.
    fn gpu_time(&mut self) -> Duration {
        Duration::ZERO
    }
}
