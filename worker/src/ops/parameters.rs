//! All weights of a model as one flat dfdx tensor.

use dfdx::prelude::*;

use super::tensor::{self, OpError};

/// The weights. Cloning shares them; changing them while a clone lives copies them first, so a tape never sees a
/// weight move.
#[derive(Clone, Debug)]
pub struct Parameters {
    flat: Tensor<(usize,), f32, Cpu>,
    /// Under this tensor's name the flat gradient lies in a tape's [`Gradients`]. It is not `flat` itself, because
    /// dfdx would clear a slot of its size for every step; a small one is cheap, and the gradient's memory, which
    /// operations overwrite, is lent to the tape instead.
    gradient_key: Tensor<(), f32, Cpu>,
}

impl Parameters {
    /// Weights from their values, in the order of the flat index space.
    pub fn new(device: &Cpu, weights: Vec<f32>) -> Result<Self, OpError> {
        let len = weights.len();
        Ok(Self {
            flat: device.try_tensor_from_vec(weights, (len,))?,
            gradient_key: device.try_zeros()?,
        })
    }

    /// The weights.
    pub fn values(&self) -> &[f32] {
        tensor::values(&self.flat)
    }

    /// The weights, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [f32] {
        tensor::values_mut(&mut self.flat)
    }

    /// Starts a tape whose operations write the flat gradient into the given memory, one number per weight.
    pub fn lend_gradient(&self, gradient: Vec<f32>) -> Result<Gradients<f32, Cpu>, OpError> {
        assert_eq!(gradient.len(), self.values().len());
        let mut gradients = Gradients::leaky();
        **gradients.get_or_alloc_mut(&self.gradient_key)? = gradient;
        Ok(gradients)
    }

    /// The flat gradient, for an operation to write its part.
    pub(super) fn gradient<'a>(&self, gradients: &'a mut Gradients<f32, Cpu>) -> Result<&'a mut Vec<f32>, OpError> {
        tensor::gradient_of(gradients, &self.gradient_key)
    }

    /// Takes the lent memory back, with the gradient in it.
    pub fn take_gradient(&self, mut gradients: Gradients<f32, Cpu>) -> Result<Vec<f32>, OpError> {
        tensor::take_gradient(&mut gradients, &self.gradient_key)
    }
}
