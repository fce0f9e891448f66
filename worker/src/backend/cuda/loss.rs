//! Softmax and cross-entropy on the device, straight from labels.

use std::rc::Rc;

use dfdx::prelude::{Cpu, Gradients, HasShape};

use super::error::GpuError;
use super::gpu::{Gpu, Grid};
use super::kernels::Softmax;
use super::layers::Pass;
use super::memory::Array;
use super::place::{Place, place_of, slot, tensor_at};
use crate::tape::{Activations, Around, Forward, Operation};

/// Classes that a warp looks at, four a thread.
const FEW_CLASSES_MAX: usize = 128;
/// Classes that a block keeps, sixteen a thread.
const MANY_CLASSES_MAX: usize = 8192;

/// The mean cross-entropy of a minibatch.
#[derive(Clone)]
pub(super) struct CudaLoss(Rc<LossRoom>);

/// What the loss reads beside logits, and what it writes, for the largest minibatch.
pub(super) struct LossRoom {
    pub(super) labels: Array<u32>,
    /// Each sample's own loss.
    pub(super) losses: Array<f32>,
    /// The gradient of the logits.
    slopes: Array<f32>,
}

impl CudaLoss {
    pub(super) fn new(gpu: &Gpu, minibatch: usize, classes: usize) -> Result<Self, GpuError> {
        Ok(Self(Rc::new(LossRoom {
            labels: Array::zeros(gpu, minibatch)?,
            losses: Array::zeros(gpu, minibatch)?,
            slopes: Array::zeros(gpu, minibatch * classes)?,
        })))
    }

    pub(super) fn room(&self) -> &LossRoom {
        &self.0
    }
}

impl Operation<()> for CudaLoss {
    type Unit = Place;
    type Pass = Pass;
    type Kept = ();
    type Error = GpuError;

    /// Each sample's loss, and the slopes that the way back begins with.
    fn forward(&self, Pass(pass): &Pass, logits: &Activations<Place>, _: bool) -> Forward<Self, ()> {
        let gpu = &pass.gpu;
        let (samples, classes) = *logits.shape();
        let (kernel, threads) = match classes {
            0..=FEW_CLASSES_MAX => (&gpu.kernels.softmax_few, 32),
            _ if classes <= MANY_CLASSES_MAX => (&gpu.kernels.softmax_many, 512),
            _ => (&gpu.kernels.softmax_any, 512),
        };
        let arguments = Softmax {
            logits: place_of(logits),
            labels: self.0.labels.at(),
            classes: classes as u32,
            share: 1.0 / samples as f32,
            losses: self.0.losses.at(),
            gradient: self.0.slopes.at(),
        };
        // SAFETY: one block for each row of logits; labels, losses and slopes have room for a larger minibatch of as many
        // classes.
        unsafe { gpu.launch(kernel, Grid::row(samples, threads), arguments)? };
        Ok((tensor_at(self.0.losses.at(), ())?, ()))
    }

    fn backward(
        &self,
        _: &Pass,
        around: Around<'_, Place, ()>,
        (): (),
        gradients: &mut Gradients<Place, Cpu>,
    ) -> Result<(), GpuError> {
        *slot(gradients, around.x)? = self.0.slopes.at().into();
        Ok(())
    }
}
