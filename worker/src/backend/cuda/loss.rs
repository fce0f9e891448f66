//! Losses on the GPU, computed from labels or target numbers.

use std::rc::Rc;

use dfdx::prelude::{Cpu, Gradients, HasShape};

use super::error::GpuError;
use super::gpu::{Gpu, Grid};
use super::kernels::{NumberLoss, SingleLoss, Softmax};
use super::layers::Pass;
use super::memory::Array;
use super::tensor_address::{TensorAddress, place_of, slot, tensor_at};
use crate::model::tape::{Activations, Forward, Neighbours, Operation};
use crate::task::objective::{Distance, Objective};

/// Most classes for the loss kernel in which one warp handles a sample, four classes per thread.
const FEW_CLASSES_MAX: usize = 128;
/// Most classes for the loss kernel in which one thread block handles a sample, sixteen classes per thread.
const MANY_CLASSES_MAX: usize = 8192;

/// The operation that computes the mean loss of a minibatch on the GPU and its gradient, with the buffers for both.
#[derive(Clone)]
pub(super) struct CudaLoss(Rc<LossRoom>);

/// Buffers of a loss for the largest minibatch: inputs besides the model's outputs, and results.
pub(super) struct LossRoom {
    objective: Objective,
    /// Weight of each class in the loss; empty if all count equally.
    weights: Array<f32>,
    /// Labels of the minibatch's samples or, if numbers are to be predicted, the bits of these numbers.
    pub(super) labels: Array<u32>,
    /// Loss of each sample of the minibatch.
    pub(super) losses: Array<f32>,
    /// Gradients of the loss at the model's outputs.
    pub(super) output_gradients: Array<f32>,
}

impl CudaLoss {
    pub(super) fn new(gpu: &Gpu, objective: &Objective, minibatch: usize, outputs: usize) -> Result<Self, GpuError> {
        let (weights, width) = match objective {
            Objective::Classes { weights, .. } => (weights.as_deref().unwrap_or_default(), 1),
            Objective::Numbers { units, .. } => (&[][..], units.len()),
            Objective::Module => (&[][..], 0),
        };
        Ok(Self(Rc::new(LossRoom {
            objective: objective.clone(),
            weights: Array::padded(gpu, weights, 0)?,
            labels: Array::zeros(gpu, minibatch * width)?,
            losses: Array::zeros(gpu, minibatch)?,
            output_gradients: Array::zeros(gpu, minibatch * outputs)?,
        })))
    }

    pub(super) fn room(&self) -> &LossRoom {
        &self.0
    }
}

impl Operation<()> for CudaLoss {
    type Unit = TensorAddress;
    type Pass = Pass;
    type Saved = ();
    type Error = GpuError;

    /// Computes each sample's loss and the output gradients, from which the backward pass starts.
    fn forward(&self, Pass(pass): &Pass, logits: &Activations<TensorAddress>, _: bool) -> Forward<Self, ()> {
        let gpu = &pass.gpu;
        let (samples, classes) = *logits.shape();
        let (room, share) = (&*self.0, pass.share / samples as f32);
        let (logits, gradient, losses) = (place_of(logits), room.output_gradients.at(), room.losses.at());
        // SAFETY: one block or thread handles one row of outputs; labels, losses and gradients have room for the
        // largest minibatch with this number of outputs; if there are class weights, each class has one.
        unsafe {
            match &room.objective {
                Objective::Classes { smoothing, weights } => {
                    let (smoothing, weighted) = (*smoothing, u32::from(weights.is_some()));
                    let (labels, weights) = (room.labels.at(), room.weights.at());
                    if classes == 1 {
                        let arguments = SingleLoss {
                            logits,
                            labels,
                            samples: samples as u32,
                            share,
                            losses,
                            gradient,
                            smoothing,
                            weights,
                            weighted,
                        };
                        gpu.launch(&gpu.kernels.single_loss, Grid::each(samples), arguments)?;
                    } else {
                        let (kernel, threads) = match classes {
                            0..=FEW_CLASSES_MAX => (&gpu.kernels.softmax_few, 32),
                            _ if classes <= MANY_CLASSES_MAX => (&gpu.kernels.softmax_many, 512),
                            _ => (&gpu.kernels.softmax_any, 512),
                        };
                        let arguments = Softmax {
                            logits,
                            labels,
                            classes: classes as u32,
                            share,
                            losses,
                            gradient,
                            smoothing,
                            weights,
                            weighted,
                        };
                        gpu.launch(kernel, Grid::row(samples, threads), arguments)?;
                    }
                }
                Objective::Numbers { distance, .. } => {
                    let kind = match distance {
                        Distance::Squared => 0,
                        Distance::Absolute => 1,
                        Distance::Huber => 2,
                    };
                    let arguments = NumberLoss {
                        found: logits,
                        wanted: room.labels.at(),
                        width: classes as u32,
                        samples: samples as u32,
                        kind,
                        share,
                        losses,
                        gradient,
                    };
                    gpu.launch(&gpu.kernels.number_loss, Grid::each(samples), arguments)?;
                }
                Objective::Module => unreachable!("a module's code computes the loss of its own samples"),
            }
        }
        Ok((tensor_at(self.0.losses.at(), ())?, ()))
    }

    fn backward(
        &self,
        _: &Pass,
        around: Neighbours<'_, TensorAddress, ()>,
        (): (),
        gradients: &mut Gradients<TensorAddress, Cpu>,
    ) -> Result<(), GpuError> {
        *slot(gradients, around.x)? = self.0.output_gradients.at().into();
        Ok(())
    }
}
