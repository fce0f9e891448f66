//! The seam between the training loop and whatever computes: a CPU, a GPU, or nothing at all in tests.
//!
//! A trainer owns two copies of the weights, the optimiser's state and its view of the training samples. The shared copy
//! lies on the lattice and moves by changes; the trainer's own moves with every step, and gradients are computed at it.
//! What they differ by is the residual. One call is one step, so that a device need not wait for its host in the middle.

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

/// What a step is to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepControl {
    /// How the gradient becomes an update. It keeps the state arrays of the rule that the trainer was made with.
    pub rule: Rule,
    /// The learning rate, schedule included.
    pub learning_rate: f64,
    /// By how much of themselves, times the learning rate, weights shrink.
    pub weight_decay: f64,
    /// The norm that the gradient is clipped to.
    pub clip: Option<f64>,
    /// How many updates of the present velocity gradients are computed ahead.
    pub look_ahead: f64,
    /// How many parts of the weights take turns in being compared.
    pub turns: usize,
    /// The number of the step, from 1.
    pub step: u64,
    /// The size at which both copies are compared, and what differs by more leaves; without one nothing does.
    pub compare: Option<Tau>,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The mean loss of the minibatch.
    pub loss: f32,
    /// How far out the shared weights now are.
    pub range: Range,
    /// The thread time that loading, forward, backward, clipping and a plain optimiser's pass took. All else that a
    /// worker does is exchange.
    pub training_time: Duration,
    /// The part of that in which updates were made orthogonal.
    pub directions: Duration,
    /// What a GPU did for it.
    pub gpu: GpuUse,
}

/// How much of a GPU a worker uses: nothing, if it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuUse {
    /// The time in which it was at work in a step.
    pub time: Duration,
    /// Bytes of its memory.
    pub memory: u64,
}

/// What a trainer alone has: all that the shared weights do not tell.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerState {
    /// Its few plain numbers.
    pub numbers: Numbers,
    /// One number per weight in each: first the residual, then what else the trainer keeps, in an order that is its own
    /// and stays.
    pub arrays: Vec<Vec<f32>>,
}

/// What a trainer has beside arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Numbers {
    /// The multiple of the velocity that its own weights are ahead.
    pub ahead: f32,
    /// How often it has compared both copies: whose turn is next.
    pub turns: u64,
}

/// Why a trainer cannot go on from a state.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// The state is of another optimiser.
    #[error("the state has {found} arrays, but this optimiser needs {needed}")]
    Arrays {
        /// How many it has.
        found: usize,
        /// How many there must be.
        needed: usize,
    },
    /// The state is of another model.
    #[error("the state has an array of {found} numbers, but this model has {needed} weights")]
    Weights {
        /// The length of an array.
        found: usize,
        /// The model's weights.
        needed: usize,
    },
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// The state is of a run that has diverged, or spoilt.
    #[error("the state holds a value that is not finite")]
    NotFinite,
}

impl TrainerState {
    /// Whether it fits a trainer with so many arrays and weights.
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

/// Something that trains a model.
pub trait Trainer {
    /// The number of weights.
    fn weights(&self) -> usize;

    /// Trains on a minibatch and replaces the contents of `changes` by the changes that leave; they are applied already. A
    /// step that fails for its numbers' sake has moved no shared weight, and its `changes` mean nothing.
    fn step(&mut self, samples: &[u32], control: StepControl, changes: &mut Vec<u32>)
    -> Result<StepReport, TrainError>;

    /// The mean loss of its own weights on some samples, no more than a minibatch. Nothing moves.
    fn loss(&mut self, samples: &[u32]) -> Result<f32, TrainError>;

    /// The step of this number will be on these samples, unless something comes between: a device that works by itself may
    /// begin with it while its host does something else. Changes that are applied before the step miss its gradient.
    fn begin(&mut self, _samples: &[u32], _step: u64) -> Result<(), TrainError> {
        Ok(())
    }

    /// Whether `begin` does anything. Callers choose samples one step early only if it does, because that costs freshness.
    const BEGINS: bool = false;

    /// Replaces the contents of `changes` by what leaves the residual as it stands, without a step; applied already.
    fn release(&mut self, tau: Tau, changes: &mut Vec<u32>) -> Result<Range, TrainError>;

    /// A contribution of what the own weights of a window differ from the shared ones by, rounded to the lattice; it is
    /// in the shared weights already, and the own ones are where they would be if all others had come as far. What
    /// fails for its numbers' sake has moved nothing.
    fn take(
        &mut self,
        window: std::ops::Range<usize>,
        contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError>;

    /// Adds what another origin's batch holds to both copies.
    fn add(&mut self, payload: &Payload) -> Result<Range, TrainError> {
        match payload {
            Payload::Steps { tau, changes } => self.apply(changes, *tau),
            Payload::Sums(sums) => self.jump(sums),
            Payload::Dense(dense) => self.shift(dense),
        }
    }

    /// Adds another origin's changes, which have been checked, to both copies.
    fn apply(&mut self, changes: &[u32], tau: Tau) -> Result<Range, TrainError>;

    /// Moves weights by whole steps, exactly, in both copies. The residual stays: it is this worker's own.
    fn jump(&mut self, sums: &Sums) -> Result<Range, TrainError>;

    /// The same for neighbouring weights, nearly all of which move.
    fn shift(&mut self, dense: &Dense) -> Result<Range, TrainError> {
        self.jump(&Sums::from(dense))
    }

    /// A copy of the shared weights.
    fn copy_weights(&self) -> Result<Vec<f32>, TrainError>;

    /// The digest recomputed from the shared weights; `None` if one has left the lattice.
    fn digest(&self) -> Result<Option<Digest>, TrainError>;

    /// The magnitude that a fraction of the residual reaches: the τ at which so many weights would leave now.
    fn residual_quantile(&self, fraction: f64) -> Result<f64, TrainError>;

    /// The norm of what has not been emitted.
    fn residual_norm(&self) -> Result<f64, TrainError>;

    /// A copy of what it alone has, between two steps.
    fn state(&self) -> Result<TrainerState, TrainError>;

    /// Goes on from such a copy, whatever the shared weights are by now. At those that it was taken at, the next steps
    /// are the same to the bit. What does not fit is refused and has no effect.
    fn restore(&mut self, state: TrainerState) -> Result<(), StateError>;
}
