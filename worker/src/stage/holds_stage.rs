//! What holds a stage of a network and the arrays of its weights.

use super::{Advance, Layers, StageModel};
use crate::trainer::TrainError;

/// A trainer, or the backend of one, that holds a stage of a network. Its gradients are computed piece by piece, and its next
/// step takes the gradient that is complete.
pub trait HoldsStage {
    /// The layers that it holds, on its device.
    type Layers: Layers;

    /// The stage.
    fn stage(&self) -> &StageModel<Self::Layers>;

    /// The stage, for what needs no weights.
    fn stage_mut(&mut self) -> &mut StageModel<Self::Layers>;

    /// Goes on with the gradient of a minibatch, by one piece of work.
    fn advance(&mut self) -> Result<Advance, TrainError>;

    /// Has the whole pipeline measured, with the shared weights of this moment.
    fn begin_evaluation(&mut self) -> Result<(), TrainError>;

    /// Goes on with an evaluation between two minibatches, by one piece of work.
    fn advance_evaluation(&mut self) -> Result<Advance, TrainError>;
}
