//! Access to the numbers of dfdx's tensors on the CPU. Only this module knows their memory layout.

use dfdx::prelude::*;

use crate::model::tape::{Activations, OpError, Parameters};

/// A minibatch of activations on the CPU, one row per sample.
pub type Rows<T = NoneTape> = Activations<f32, T>;

/// Returns the numbers of a tensor, row-major, without copying them.
///
/// dfdx 0.13 has no public view of a CPU tensor's storage, only indexing. All tensors here come from
/// [`from_rows`] or from operations that keep their input's strides, so they are contiguous.
pub fn values<S: Shape, T>(tensor: &Tensor<S, f32, Cpu, T>) -> &[f32] {
    let len = tensor.shape().num_elements();
    if len == 0 {
        return &[];
    }
    let zero = S::Concrete::default();
    let first: &f32 = &tensor[zero];
    // SAFETY: indexing with zeros gives the first element of the tensor's `Vec<f32>`, which dfdx fills with exactly
    // `num_elements` numbers for a contiguous shape; it cannot change while `tensor` is borrowed. The slice reaches
    // beyond the one element that was borrowed, but not beyond its allocation: Tree Borrows allows that, the older
    // Stacked Borrows would not. dfdx offers no other view.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(first), len) }
}

/// Returns the numbers of a tensor for writing. A tensor that shares its storage gets its own copy first.
fn values_mut<S: Shape>(tensor: &mut Tensor<S, f32, Cpu>) -> &mut [f32] {
    let len = tensor.shape().num_elements();
    if len == 0 {
        return &mut [];
    }
    let zero = S::Concrete::default();
    let first: &mut f32 = &mut tensor[zero];
    // SAFETY: as in `values`; dfdx's mutable indexing makes the storage unique to this tensor.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(first), len) }
}

/// Makes a tensor with one row per sample.
pub fn from_rows(device: &Cpu, rows: usize, columns: usize, values: Vec<f32>) -> Result<Rows, OpError> {
    device.try_tensor_from_vec(values, (rows, columns))
}

/// Takes a tensor's gradient out of the gradients instead of copying it: each gradient is read only once, because each
/// operation runs once.
pub(super) fn take_gradient<S: Shape>(
    gradients: &mut Gradients<f32, Cpu>,
    of: &Tensor<S, f32, Cpu>,
) -> Result<Vec<f32>, OpError> {
    Ok(std::mem::take(&mut **gradients.get_or_alloc_mut(of)?))
}

/// Returns a tensor's gradient, initially zeros, to which operations add in the backward pass.
pub(super) fn gradient_of<'a, S: Shape>(
    gradients: &'a mut Gradients<f32, Cpu>,
    of: &Tensor<S, f32, Cpu>,
) -> Result<&'a mut Vec<f32>, OpError> {
    Ok(&mut **gradients.get_or_alloc_mut(of)?)
}

impl Parameters {
    /// Makes parameters from weights, in the order of the flat index space.
    pub fn new(device: &Cpu, weights: Vec<f32>) -> Result<Self, OpError> {
        let len = weights.len();
        Self::stored(device.try_tensor_from_vec(weights, (len,))?)
    }

    #[must_use]
    pub fn values(&self) -> &[f32] {
        values(&self.flat)
    }

    /// Returns the weights for writing.
    pub fn values_mut(&mut self) -> &mut [f32] {
        values_mut(&mut self.flat)
    }
}
