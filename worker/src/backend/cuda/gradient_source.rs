//! The sources of gradients on a GPU: a whole network, or one stage of a pipeline.

use super::address::DeviceAddress;
use super::memory::Array;
use super::weights::Weights;
use crate::trainer::gradient_source::GradientSource;

/// A source of gradients on a GPU: a whole network, or one stage of a pipeline.
pub trait CudaGradientSource:
    GradientSource<Weights = Weights, Gradient = DeviceAddress<f32>, Shared = Array<f32>, Loss: Into<Loss>>
{
}

impl<S> CudaGradientSource for S where
    S: GradientSource<Weights = Weights, Gradient = DeviceAddress<f32>, Shared = Array<f32>, Loss: Into<Loss>>
{
}

/// Loss of a minibatch, either as a number on the host or as an array on the device.
#[derive(Clone, Copy)]
pub enum Loss {
    /// Mean loss of the minibatch, computed on the host.
    Known(f32),
    /// Losses of the minibatch's samples, as an array on the device, and the number of samples.
    OnDevice(DeviceAddress<f32>, usize),
}

impl From<f32> for Loss {
    fn from(loss: f32) -> Self {
        Self::Known(loss)
    }
}
