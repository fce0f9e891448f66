//! What gradients come from on a GPU: a whole network, or a stage of one.

use super::address::DeviceAddress;
use super::memory::Array;
use super::weights::Weights;
use crate::trainer::gradient_source::GradientSource;

/// What gradients come from on a GPU.
pub trait CudaGradientSource:
    GradientSource<Weights = Weights, Gradient = DeviceAddress<f32>, Shared = Array<f32>, Loss: Into<Loss>>
{
}

impl<S> CudaGradientSource for S where
    S: GradientSource<Weights = Weights, Gradient = DeviceAddress<f32>, Shared = Array<f32>, Loss: Into<Loss>>
{
}

/// The loss of a minibatch, as far as the host knows it.
#[derive(Clone, Copy)]
pub enum Loss {
    /// It is known.
    Known(f32),
    /// Those of so many samples, on the device.
    OnDevice(DeviceAddress<f32>, usize),
}

impl From<f32> for Loss {
    fn from(loss: f32) -> Self {
        Self::Known(loss)
    }
}
