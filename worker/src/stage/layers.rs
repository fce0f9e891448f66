//! The layers of one layer range, as far as a worker holds them, on whatever device computes them: what comes in goes there,
//! and gradients come back. What passes is rows of plain numbers, so workers of a pipeline may compute on different devices.

use std::borrow::Cow;

use crate::model::ops::MeanLoss;
use crate::model::ops::matmul::WriteMode;
use crate::trainer::TrainError;

/// What a worker holds of a layer range.
pub trait Layers {
    /// The weights of a stage. Who clones them has them as they are now, whatever becomes of them.
    type Weights;
    /// The shared weights of a stage.
    type Shared: ?Sized;
    /// Where the gradient of a stage's weights lies.
    type Gradient;
    /// A gradient of some weights that can be computed later.
    type Deferred;

    /// Which layer range it is.
    fn number(&self) -> usize;

    /// A micro-batch goes through, by the step of its minibatch and its number. What comes out. The micro-batch keeps the
    /// weights that it went with for its way back.
    fn forward(
        &mut self,
        micro_batch: (u64, u16),
        weights: &Self::Weights,
        key: u64,
        inputs: Vec<f32>,
    ) -> Result<Cow<'_, [f32]>, TrainError>;

    /// Gradients have come for what a micro-batch's outputs were; what becomes of the gradient that others have written. None
    /// if no such micro-batch is under way.
    fn backward(
        &mut self,
        micro_batch: (u64, u16),
        came: (Vec<f32>, f32),
        write_mode: WriteMode,
        gradient: &mut Self::Gradient,
    ) -> Result<Option<Returned<Self::Deferred>>, TrainError>;

    /// A micro-batch, which is so much of a minibatch, goes through the last layers and, by its loss, back at once.
    fn run_loss_head(
        &mut self,
        there: (&Self::Weights, u64, Vec<f32>),
        loss: (&MeanLoss, f32),
        write_mode: WriteMode,
        gradient: &mut Self::Gradient,
    ) -> Result<Returned<Self::Deferred>, TrainError>;

    /// Computes a gradient that nobody waits for.
    fn compute_deferred(&self, deferred: Self::Deferred, write_mode: WriteMode, gradient: &mut Self::Gradient);

    /// What comes out where nothing is trained.
    fn infer(&mut self, weights: &Self::Weights, inputs: Vec<f32>) -> Result<Vec<f32>, TrainError>;

    /// A copy of the shared weights, to measure them with.
    fn copied(&self, shared: &Self::Shared) -> Result<Self::Weights, TrainError>;

    /// Forgets what is under way.
    fn clear(&mut self);
}

/// What came back of a micro-batch.
pub struct Returned<O> {
    pub(crate) loss: f32,
    /// The gradients at what had come in; nothing where that were samples.
    pub(crate) input_gradients: Vec<f32>,
    /// What of its gradient is still to be computed.
    pub(crate) deferred: Vec<O>,
}
