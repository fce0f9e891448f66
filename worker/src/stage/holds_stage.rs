//! The interface of trainers and backends that hold a stage of a network.

use super::{Advance, Layers, StageModel};
use crate::trainer::TrainError;

/// A trainer, or its compute backend, that holds a pipeline stage of a network. Its gradients are computed piece by
/// piece, as messages from other stages arrive, and its next step takes the gradient that is complete.
pub trait HoldsStage {
    /// Type of the stage's layers on the trainer's device.
    type Layers: Layers;

    fn stage(&self) -> &StageModel<Self::Layers>;

    /// Returns this worker's stage of the network for changes that need no weights, such as pipeline events.
    fn stage_mut(&mut self) -> &mut StageModel<Self::Layers>;

    /// Advances the gradient of a minibatch by one piece of work.
    fn advance(&mut self) -> Result<Advance, TrainError>;

    /// Begins an evaluation of the whole pipeline with the present shared weights.
    fn begin_evaluation(&mut self) -> Result<(), TrainError>;

    /// Advances an evaluation of the whole pipeline by one piece of work, between two minibatches.
    fn advance_evaluation(&mut self) -> Result<Advance, TrainError>;
}
