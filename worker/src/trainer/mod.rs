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

/// The settings of one training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepControl {
    /// Rule that turns the gradient into an update. It must keep the same state arrays as the rule that the trainer was
    /// made with.
    pub rule: Rule,
    /// The learning rate, schedule included.
    pub learning_rate: f64,
    /// Fraction of themselves, times the learning rate, by which weights decay.
    pub weight_decay: f64,
    /// Norm to which the gradient is clipped; `None` if it is not.
    pub clip: Option<f64>,
    /// Number of updates, at the present velocity, by which the step looks ahead when it computes the gradient.
    pub look_ahead: f64,
    /// Number of steps over which one comparison of all weights with the shared copy is spread.
    pub turns: usize,
    /// Number of the step, from 1.
    pub step: u64,
    /// Size τ of the changes that leave where both copies differ by τ or more; `None` if the step emits nothing.
    pub compare: Option<Tau>,
}

/// The result of a training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Mean loss of the minibatch.
    pub loss: f32,
    /// Alarm if a shared weight is beyond ±8 now.
    pub range: Range,
    /// Thread time of loading, forward and backward pass, clipping and a plain optimiser's pass. All other time of a
    /// worker counts as exchange.
    pub training_time: Duration,
    /// The part of `training_time` in which updates were made orthogonal.
    pub directions: Duration,
    /// Use of the GPU in the step.
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

/// The state of a trainer beyond the shared weights.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerState {
    /// The scalars of the state.
    pub numbers: Numbers,
    /// Arrays with one number per weight: first the residual, then others, in an order that is the trainer's own and
    /// stays.
    pub arrays: Vec<Vec<f32>>,
}

/// The scalars in a trainer's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// Multiple of the velocity by which the own weights are ahead.
    pub ahead: f32,
    /// Number of comparisons of both copies so far, which determines the next turn.
    pub turns: u64,
}

/// The reason for which a trainer cannot continue from a state.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// The state is of another optimiser.
    #[error("the state has {found} arrays, but this optimiser needs {needed}")]
    Arrays {
        /// Number of arrays in the state.
        found: usize,
        /// Number of arrays that the optimiser needs.
        needed: usize,
    },
    /// The state is of another model.
    #[error("the state has an array of {found} numbers, but this model has {needed} weights")]
    Weights {
        /// Length of an array in the state.
        found: usize,
        /// Number of the model's weights.
        needed: usize,
    },
    #[error("the device failed: {0}")]
    Device(String),
    /// The state is of a run that has diverged, or is corrupted.
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

/// A device-specific implementation of training steps on one model.
pub trait Trainer {
    fn weights(&self) -> usize;

    /// Trains on a minibatch and replaces the contents of `changes` by the changes that leave; these are applied
    /// already. A step that fails because of its numbers has moved no shared weight, and its `changes` mean nothing.
    fn step(&mut self, samples: &[u32], control: StepControl, changes: &mut Vec<u32>)
    -> Result<StepReport, TrainError>;

    /// Computes the mean loss of the own weights on at most a minibatch of samples, and moves nothing.
    fn loss(&mut self, samples: &[u32]) -> Result<f32, TrainError>;

    /// Announces that the step of this number will probably be on these samples: a device that works by itself may
    /// begin while its host does something else. Changes that are applied before the step miss its gradient.
    fn begin(&mut self, _samples: &[u32], _step: u64) -> Result<(), TrainError> {
        Ok(())
    }

    /// True if `begin` does anything. Callers choose samples one step early only then, because that costs freshness.
    const BEGINS: bool = false;

    /// Replaces the contents of `changes` by the changes of ±τ that leave the residual without a step; these are
    /// applied already.
    fn release(&mut self, tau: Tau, changes: &mut Vec<u32>) -> Result<Range, TrainError>;

    /// Takes a contribution of the difference between own and shared weights in a window, rounded to the lattice. The
    /// shared weights contain it afterwards, and the own ones are where they would be if all other workers had come as
    /// far. If a value is out of range, the call fails and leaves both copies unchanged.
    fn take(
        &mut self,
        window: std::ops::Range<usize>,
        contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError>;

    /// Adds the payload of another origin's batch to both copies.
    fn add(&mut self, payload: &Payload) -> Result<Range, TrainError> {
        match payload {
            Payload::Steps { tau, changes } => self.apply(changes, *tau),
            Payload::Sums(sums) => self.jump(sums),
            Payload::Dense(dense) => self.shift(dense),
        }
    }

    /// Adds another origin's changes, which have been checked, to both copies.
    fn apply(&mut self, changes: &[u32], tau: Tau) -> Result<Range, TrainError>;

    /// Moves weights by whole lattice steps, exactly, in both copies. The residual stays.
    fn jump(&mut self, sums: &Sums) -> Result<Range, TrainError>;

    /// Does the same as [`Trainer::jump`] for neighbouring weights, nearly all of which move.
    fn shift(&mut self, dense: &Dense) -> Result<Range, TrainError> {
        self.jump(&Sums::from(dense))
    }

    /// Returns a copy of the shared weights.
    fn copy_weights(&self) -> Result<Vec<f32>, TrainError>;

    /// Recomputes the digest from the shared weights; `None` if a weight has left the lattice.
    fn digest(&self) -> Result<Option<Digest>, TrainError>;

    /// Returns the magnitude that this fraction of the residual reaches: the τ at which that fraction of the weights
    /// would leave.
    fn residual_quantile(&self, fraction: f64) -> Result<f64, TrainError>;

    /// Norm of the residual.
    fn residual_norm(&self) -> Result<f64, TrainError>;

    /// Returns a copy of the trainer's own state, between two steps.
    fn state(&self) -> Result<TrainerState, TrainError>;

    /// Continues from a copied state, whatever the shared weights are by now. If they are the same, the next steps are
    /// the same to the bit. A state that does not fit is refused and has no effect.
    fn restore(&mut self, state: TrainerState) -> Result<(), StateError>;
}
