//! The interface between the training loop and the device that computes: a CPU, a GPU, or nothing at all in tests.
//!
//! A trainer owns two copies of the weights, the optimiser's state and its view of the training samples. The shared
//! copy lies on the lattice and moves by changes; the trainer's own copy moves with every step, and gradients are
//! computed at it. The difference between the two is the residual. One call is one step, so that a device need not wait
//! for its host in the middle.

pub mod difference;
mod error;
pub mod fake;
pub(crate) mod gradient_source;
pub mod quantise;

use std::time::Duration;

use protocol::job::optimiser::Rule;
use protocol::log::batch::Payload;
use protocol::weights::dense::Dense;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::{Range, Tau};
use protocol::weights::sums::Sums;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use error::{PipelineViolation, TrainError};
use protocol::weights::contribution::Contribution;

/// Settings of one training step, chosen anew for each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepControl {
    /// Rule that turns the gradient into an update. It must keep the same state arrays as the rule that the trainer was
    /// made with.
    pub rule: Rule,
    /// Learning rate of the step, already multiplied by the factor of the learning-rate schedule.
    pub learning_rate: f64,
    /// Weight decay of the step: every weight shrinks by this fraction of itself times the learning rate.
    pub weight_decay: f64,
    /// Norm to which the gradient is clipped; `None` if it is not.
    pub clip: Option<f64>,
    /// Number of updates by which the step looks ahead: the gradient is computed where the velocity would take the
    /// weights.
    pub look_ahead: f64,
    /// Number of steps in which all own weights are compared with the shared copy once: each step compares one part of
    /// them.
    pub turns: usize,
    /// Number of the training step, from 1.
    pub step: u64,
    /// Size τ of the weight changes that leave in this step, wherever own and shared weights differ by τ or more;
    /// `None` if the step emits nothing.
    pub compare: Option<Tau>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Mean loss of the minibatch.
    pub loss: f32,
    /// Result of the range check after the step: an alarm if a shared weight is beyond ±8.
    pub range: Range,
    /// Thread time of a step that counts as training: loading, forward and backward pass, clipping and a plain
    /// optimiser's pass. All other time of a worker counts as exchange.
    pub training_time: Duration,
    /// Part of the step's `training_time` in which the optimiser made updates orthogonal.
    pub directions: Duration,
    /// Time and memory that the step took on the GPU.
    pub gpu: GpuUse,
}

/// A worker's use of a GPU; zero without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuUse {
    /// Time in which the GPU worked in a step.
    pub time: Duration,
    /// GPU memory that the worker uses, in bytes.
    pub memory: u64,
}

/// A trainer's own state, besides the shared weights: residual and optimiser state, saved so that a restarted worker
/// can continue.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerState {
    /// Scalar numbers of a trainer's saved state.
    pub numbers: Numbers,
    /// Arrays of a trainer's saved state with one number per weight: first the residual (own minus shared weights),
    /// then others, in an order that is the trainer's own and stays.
    pub arrays: Vec<Vec<f32>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// Multiple of the velocity by which the stored own weights look ahead.
    pub ahead: f32,
    /// Number of comparisons of own and shared weights so far, which determines the part of the weights that is
    /// compared next.
    pub turns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// Reason why a trainer refuses a saved state: it is of another optimiser.
    #[error("the state has {found} arrays, but this optimiser needs {needed}")]
    Arrays {
        /// Number of arrays in the saved state that was refused.
        found: usize,
        /// Number of arrays that the state of this trainer's optimiser has.
        needed: usize,
    },
    /// Reason why a trainer refuses a saved state: it is of another model.
    #[error("the state has an array of {found} numbers, but this model has {needed} weights")]
    Weights {
        /// Length of the saved state's array that does not fit the model.
        found: usize,
        /// Number of weights of the model, which the array in the saved state should have the length of.
        needed: usize,
    },
    #[error("the device failed: {0}")]
    Device(String),
    /// Reason why a trainer refuses a saved state: the run had diverged, or the state is corrupted.
    #[error("the state holds a value that is not finite")]
    NotFinite,
}

impl TrainerState {
    /// Checks that the state fits a trainer with this many arrays and weights.
    pub fn check(&self, arrays: usize, weights: usize) -> Result<(), StateError> {
        if self.arrays.len() != arrays {
            return Err(StateError::Arrays {
                found: self.arrays.len(),
                needed: arrays,
            });
        }
        if let Some(other) = self.arrays.iter().find(|array| array.len() != weights) {
            return Err(StateError::Weights {
                found: other.len(),
                needed: weights,
            });
        }
        let finite = self.numbers.ahead.is_finite() && self.arrays.iter().flatten().all(|number| number.is_finite());
        if finite { Ok(()) } else { Err(StateError::NotFinite) }
    }
}

/// Training of one model's weights on a device: makes steps and applies other workers' batches. Keeps the worker's own
/// weights and the shared copy.
pub trait Trainer {
    fn weights(&self) -> usize;

    /// Trains on a minibatch and replaces the contents of `changes` by the weight changes to send; these are applied to
    /// the shared weights already. A step that fails because of its numbers has moved no shared weight, and its
    /// `changes` mean nothing.
    fn step(&mut self, samples: &[u32], control: StepControl, changes: &mut Vec<u32>)
    -> Result<StepReport, TrainError>;

    /// Computes the mean loss of the own weights on at most a minibatch of samples, and moves nothing.
    fn loss(&mut self, samples: &[u32]) -> Result<f32, TrainError>;

    /// Announces the samples of the step after the next one, and its number: a device that works by itself begins with
    /// them as soon as it has the next step, before its host waits for that step's changes. Batches that are applied
    /// between the two steps do not enter the gradient of the announced one.
    fn announce(&mut self, _samples: &[u32], _step: u64) {}

    /// True if [`Trainer::announce`] (early start of a step on the device) does anything for this trainer. Only for such
    /// trainers are samples chosen one step early, because a gradient that begins early lacks the newest batches of
    /// other workers.
    const BEGINS: bool = false;

    /// Takes changes of ±τ out of the residual without a training step, and replaces the contents of `changes` by them.
    /// They are applied to the shared weights already.
    fn release(&mut self, tau: Tau, changes: &mut Vec<u32>) -> Result<Range, TrainError>;

    /// Takes a contribution (a fraction of the difference between own and shared weights) in a window of weights, to be
    /// sent, rounded to multiples of the step between two neighbouring values of a shared weight. Adds it to the shared
    /// weights, and subtracts from the own ones the contributions that the other workers are expected to make. If a
    /// value is out of range, the call fails and leaves both copies unchanged.
    fn take(
        &mut self,
        window: std::ops::Range<usize>,
        contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError>;

    /// Adds the weight changes of another worker's batch to own and shared weights.
    fn add(&mut self, payload: &Payload) -> Result<Range, TrainError> {
        match payload {
            Payload::Steps { tau, changes } => self.apply(changes, *tau),
            Payload::Sums(sums) => self.jump(sums),
            Payload::Dense(dense) => self.shift(dense),
        }
    }

    /// Adds another worker's changes of ±τ, which have been checked, to own and shared weights.
    fn apply(&mut self, changes: &[u32], tau: Tau) -> Result<Range, TrainError>;

    /// Moves weights by multiples of the step between two neighbouring values of a shared weight, exactly. Own and
    /// shared weights move alike, so that their difference (the residual) stays.
    fn jump(&mut self, sums: &Sums) -> Result<Range, TrainError>;

    /// Moves own and shared weights by multiples of the step between two neighbouring values of a shared weight, as
    /// [`Trainer::jump`] does, for a range of neighbouring weights nearly all of which move.
    fn shift(&mut self, dense: &Dense) -> Result<Range, TrainError> {
        self.jump(&Sums::from(dense))
    }

    /// Returns a copy of the shared weights.
    fn copy_weights(&self) -> Result<Vec<f32>, TrainError>;

    /// Recomputes the digest (checksum of a replica) from the shared weights; `None` if one of them is not a possible
    /// value of a shared weight.
    fn digest(&self) -> Result<Option<Digest>, TrainError>;

    /// Returns the magnitude that this fraction of the residual's values (own minus shared weights) reaches: the τ at
    /// which that fraction of the weights would leave.
    fn residual_quantile(&self, fraction: f64) -> Result<f64, TrainError>;

    /// Returns the norm of the residual: the difference between own and shared weights, learned and not sent yet.
    fn residual_norm(&self) -> Result<f64, TrainError>;

    /// Returns a copy of the trainer's own state (residual and optimiser state), between two steps.
    fn state(&self) -> Result<TrainerState, TrainError>;

    /// Continues from a saved copy of the trainer's own state (residual and optimiser state). The shared weights may
    /// have changed since; if they have not, the next steps are the same to the bit. A state that does not fit is
    /// refused and has no effect.
    fn restore(&mut self, state: TrainerState) -> Result<(), StateError>;
}
