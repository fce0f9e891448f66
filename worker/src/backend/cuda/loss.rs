//! Losses on the device, straight from labels or numbers.

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

/// Classes that a warp looks at, four a thread.
const FEW_CLASSES_MAX: usize = 128;
/// Classes that a block keeps, sixteen a thread.
const MANY_CLASSES_MAX: usize = 8192;

/// The mean loss of a minibatch.
#[derive(Clone)]
pub(super) struct CudaLoss(Rc<LossRoom>);

/// What the loss reads beside outputs, and what it writes, for the largest minibatch.
pub(super) struct LossRoom {
    objective: Objective,
    /// How much samples of each class count, where they differ.
    weights: Array<f32>,
    /// Labels, or numbers as words.
    pub(super) labels: Array<u32>,
    /// Each sample's own loss.
    pub(super) losses: Array<f32>,
    /// The gradient of the outputs.
    pub(super) output_gradients: Array<f32>,
}

impl CudaLoss {
    pub(super) fn new(gpu: &Gpu, objective: &Objective, minibatch: usize, outputs: usize) -> Result<Self, GpuError> {
        let (weights, width) = match objective {
            Objective::Classes { weights, .. } => (weights.as_deref().unwrap_or_default(), 1),
            Objective::Numbers { units, .. } => (&[][..], units.len()),
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

    /// Each sample's loss, and the gradients that the way back begins with.
    fn forward(&self, Pass(pass): &Pass, logits: &Activations<TensorAddress>, _: bool) -> Forward<Self, ()> {
        let gpu = &pass.gpu;
        let (samples, classes) = *logits.shape();
        let (room, share) = (&*self.0, pass.share / samples as f32);
        let (logits, gradient, losses) = (place_of(logits), room.output_gradients.at(), room.losses.at());
        // SAFETY: one block or thread for each row of outputs; labels, losses and gradients have room for a larger minibatch
        // of as many outputs, and there is a weight for each class where any are.
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
