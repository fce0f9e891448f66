//! Weights on the device, of which some may be needed as they were.

use std::rc::Rc;

use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::Array;
use super::tensor_address::{TensorAddress, tensor_at};
use crate::model::tape::Parameters;

/// Weights on the device. Who clones them shares them, and they stay as they are.
#[derive(Clone)]
pub struct Weights {
    array: Rc<Array<f32>>,
    /// The same, as dfdx sees them.
    parameters: Parameters<TensorAddress>,
}

impl Weights {
    /// An array of which so many numbers are weights; the others are zeros, which fill it up.
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

/// A worker's own weights: they move with every step, unless a minibatch that is under way went with them.
pub(super) struct OwnWeights {
    now: Weights,
    count: usize,
    /// What they were, where somebody had them then. Those that nobody has any more are written anew.
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

    /// As they are now, to be cloned by whoever needs them to stay.
    pub(super) fn now(&self) -> &Weights {
        &self.now
    }

    pub(super) fn at(&self) -> DeviceAddress<f32> {
        self.now.array.at()
    }

    /// Says that they will move: if somebody has them, they move in a copy.
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
