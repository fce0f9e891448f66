//! The interface to a worker's layers of one layer range, on any device: activations go forward, gradients come back.
//! Only rows of plain numbers pass between workers, so these may compute on different devices.

use std::borrow::Cow;

use crate::model::ops::MeanLoss;
use crate::model::ops::matmul::WriteMode;
use crate::trainer::TrainError;

/// The layers that a worker holds of a layer range.
pub trait Layers {
    /// The weights of a stage. A clone keeps the present values when the original changes.
    type Weights;
    /// The shared weights of a stage.
    type Shared: ?Sized;
    /// The array that receives the gradient of a stage's weights.
    type Gradient;
    /// A weight gradient that can be computed later.
    type Deferred;

    /// Number of the layer range.
    fn number(&self) -> usize;

    /// Computes a micro-batch's outputs. `micro_batch` holds the step of its minibatch and its number. The micro-batch
    /// keeps these weights for its backward pass.
    fn forward(
        &mut self,
        micro_batch: (u64, u16),
        weights: &Self::Weights,
        key: u64,
        inputs: Vec<f32>,
    ) -> Result<Cow<'_, [f32]>, TrainError>;

    /// Runs a micro-batch backward: `came` holds its output gradients and its loss, and `write_mode` says if its weight
    /// gradient replaces `gradient` or is added. Returns `None` if no such micro-batch is in flight.
    fn backward(
        &mut self,
        micro_batch: (u64, u16),
        came: (Vec<f32>, f32),
        write_mode: WriteMode,
        gradient: &mut Self::Gradient,
    ) -> Result<Option<Returned<Self::Deferred>>, TrainError>;

    /// Runs a micro-batch forward through the last layers, computes its loss, and runs it backward at once. `there`
    /// holds weights, key and inputs, and `loss` the loss function and the micro-batch's fraction of its minibatch.
    fn run_loss_head(
        &mut self,
        there: (&Self::Weights, u64, Vec<f32>),
        loss: (&MeanLoss, f32),
        write_mode: WriteMode,
        gradient: &mut Self::Gradient,
    ) -> Result<Returned<Self::Deferred>, TrainError>;

    /// Computes a weight gradient that was deferred.
    fn compute_deferred(&self, deferred: Self::Deferred, write_mode: WriteMode, gradient: &mut Self::Gradient);

    /// Computes outputs for an evaluation, without training.
    fn infer(&mut self, weights: &Self::Weights, inputs: Vec<f32>) -> Result<Vec<f32>, TrainError>;

    /// Returns a copy of the shared weights, to evaluate them.
    fn copied(&self, shared: &Self::Shared) -> Result<Self::Weights, TrainError>;

    /// Forgets all micro-batches in flight.
    fn clear(&mut self);
}

/// The result of a micro-batch's backward pass.
pub struct Returned<O> {
    pub(crate) loss: f32,
    /// Gradients of the loss at the inputs; empty if the inputs were samples.
    pub(crate) input_gradients: Vec<f32>,
    /// Weight gradients that are still to be computed.
    pub(crate) deferred: Vec<O>,
}
