//! The interface to a worker's layers of one layer range, on any device: activations go forward, gradients come back.
//! Only rows of plain numbers pass between workers, so these may compute on different devices.

use std::borrow::Cow;

use crate::model::ops::MeanLoss;
use crate::model::ops::matmul::WriteMode;
use crate::trainer::TrainError;

/// The part of a layer range (neighbouring layers of a network) that one worker of a pipeline holds and computes.
pub trait Layers {
    /// Weights of a pipeline stage on the device. A clone keeps the present values when the original changes.
    type Weights;
    /// Shared weights of a pipeline stage on the device: the copy that all workers with this stage have in common.
    type Shared: ?Sized;
    /// Array on the device that receives the gradient of a stage's weights.
    type Gradient;
    /// Weight gradient of a layer whose computation is postponed, because no other worker waits for it.
    type Deferred;

    /// Returns the number of the layer range in the network.
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

    /// Computes a weight gradient that was postponed, and writes it to `gradient` or adds it, as `write_mode` says.
    fn compute_deferred(&self, deferred: Self::Deferred, write_mode: WriteMode, gradient: &mut Self::Gradient);

    fn infer(&mut self, weights: &Self::Weights, inputs: Vec<f32>) -> Result<Vec<f32>, TrainError>;

    /// Returns a copy of the shared weights, so that an evaluation sees weights that do not change.
    fn copied(&self, shared: &Self::Shared) -> Result<Self::Weights, TrainError>;

    /// Forgets all micro-batches in flight, because their pipeline has broken.
    fn clear(&mut self);
}

/// Result of a micro-batch's backward pass through some layers.
pub struct Returned<O> {
    pub(crate) loss: f32,
    /// Gradients of the loss at the inputs; empty if the inputs were samples.
    pub(crate) input_gradients: Vec<f32>,
    /// Weight gradients of the micro-batch that are still to be computed.
    pub(crate) deferred: Vec<O>,
}
