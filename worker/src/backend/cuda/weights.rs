//! Weights on the GPU with copy-on-write: minibatches in flight keep the weights that they started with.

use std::rc::Rc;

use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::Array;
use super::tensor_address::{TensorAddress, tensor_at};
use crate::model::tape::Parameters;

/// An array of weights on the GPU. Clones share the array, which does not change while a clone exists.
#[derive(Clone)]
pub struct Weights {
    array: Rc<Array<f32>>,
    parameters: Parameters<TensorAddress>,
}

impl Weights {
    /// Wraps an array whose first `weights` numbers are weights; the rest is zero padding.
    pub(super) fn new(array: Array<f32>, weights: usize) -> Result<Self, GpuError> {
        Ok(Self {
            parameters: Parameters::stored(tensor_at(array.at(), (weights,))?)?,
            array: Rc::new(array),
        })
    }

    pub(super) fn array(&self) -> &Array<f32> {
        &self.array
    }

    pub(super) fn parameters(&self) -> &Parameters<TensorAddress> {
        &self.parameters
    }
}

/// A worker's own weights, which move with every step. If a minibatch in flight uses them, a copy moves instead.
pub(super) struct OwnWeights {
    now: Weights,
    count: usize,
    /// Earlier versions of the own weights. Their arrays are reused once no minibatch uses them.
    before: Vec<Weights>,
}

impl OwnWeights {
    pub(super) fn new(array: Array<f32>, count: usize) -> Result<Self, GpuError> {
        Ok(Self {
            now: Weights::new(array, count)?,
            count,
            before: Vec::new(),
        })
    }

    /// Returns the worker's present weights; later steps do not change a clone of them.
    pub(super) fn now(&self) -> &Weights {
        &self.now
    }

    pub(super) fn at(&self) -> DeviceAddress<f32> {
        self.now.array.at()
    }

    /// Returns the array of the own weights for writing. If a clone of the weights exists, they continue in a copy.
    pub(super) fn will_move(&mut self, gpu: &Gpu) -> Result<&mut Array<f32>, GpuError> {
        let is_free = |weights: &Weights| Rc::strong_count(&weights.array) == 1;
        if !is_free(&self.now) {
            let mut next = match self.before.iter().position(is_free) {
                Some(at) => self.before.swap_remove(at),
                None => Weights::new(Array::zeros(gpu, self.now.array.len())?, self.count)?,
            };
            if let Some(array) = Rc::get_mut(&mut next.array) {
                array.copy_from(gpu, &self.now.array)?;
            }
            self.before.push(std::mem::replace(&mut self.now, next));
        }
        Ok(Rc::get_mut(&mut self.now.array).expect("the weight array is still shared"))
    }
}
