//! Shows arrays of the device to dfdx as tensors whose one stored value is the array's address, broadcast to the
//! array's shape without a copy. Shapes, identities, tape and gradients are dfdx's own; the numbers never leave the
//! device.
//!
//! The type of these tensors names dfdx's CPU as their device, because that is where the addresses lie. dfdx's own CUDA
//! device is not used: building it takes NVIDIA's compiler, it links CUDA, it gives no address of a tensor, and it has
//! no convolution on a stable compiler. Other crates cannot add a device to dfdx, but they can add a stored type.

use cudarc::driver::sys::CUdeviceptr;
use dfdx::prelude::*;

use super::address::DeviceAddress;
use crate::model::tape::OpError;

/// Address of an array on the device; 0 until it is set, as for a gradient that has not been computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(super) struct TensorAddress(CUdeviceptr);

impl SafeZeros for TensorAddress {}

impl Unit for TensorAddress {
    /// The gradient that dfdx starts its backward pass with. It is not used: the loss has written its gradients
    /// already.
    const ONE: Self = Self(1);
}

impl From<DeviceAddress<f32>> for TensorAddress {
    fn from(at: DeviceAddress<f32>) -> Self {
        Self(at.address())
    }
}

impl From<TensorAddress> for DeviceAddress<f32> {
    fn from(place: TensorAddress) -> Self {
        Self::new(place.0)
    }
}

/// Makes a tensor of this shape for the numbers at an address.
pub(super) fn tensor_at<S: Shape, Ax: Axes>(
    at: DeviceAddress<f32>,
    shape: S,
) -> Result<Tensor<S, TensorAddress, Cpu>, OpError>
where
    (): BroadcastShapeTo<S, Ax>,
{
    Cpu::default()
        .try_tensor_from_vec(vec![TensorAddress::from(at)], ())?
        .try_broadcast_like(&shape)
}

/// Returns the address of a tensor's numbers.
pub(super) fn place_of<S: Shape, T>(tensor: &Tensor<S, TensorAddress, Cpu, T>) -> DeviceAddress<f32> {
    tensor[S::Concrete::default()].into()
}

/// Returns the entry among the gradients that holds the address of this tensor's gradient.
pub(super) fn slot<'a, S: Shape>(
    gradients: &'a mut Gradients<TensorAddress, Cpu>,
    of: &Tensor<S, TensorAddress, Cpu>,
) -> Result<&'a mut TensorAddress, OpError> {
    Ok(&mut gradients.get_or_alloc_mut(of)?[0])
}
