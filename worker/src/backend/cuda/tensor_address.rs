//! How dfdx sees an array of the device: as a tensor whose one stored value is the place where all its numbers lie,
//! broadcast to the array's shape without a copy. Shapes, identities, tape and gradients are dfdx's own; the numbers never
//! leave the device.
//!
//! The device in these tensors' type is dfdx's CPU, which is true of the place and not of what lies there. dfdx's own
//! CUDA device is not used: it cannot be built without NVIDIA's compiler, links CUDA, gives no address of a tensor, and
//! has no convolution on a stable compiler. An own device is impossible outside of the crate; an own stored type is not.

use cudarc::driver::sys::CUdeviceptr;
use dfdx::prelude::*;

use super::address::DeviceAddress;
use crate::model::tape::OpError;

/// The address of an array on the device; none at first, as of a gradient that nothing has come back to.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(super) struct TensorAddress(CUdeviceptr);

impl SafeZeros for TensorAddress {}

impl Unit for TensorAddress {
    /// The gradient with which dfdx begins its backward pass. The loss has written its gradients already, and does not
    /// look.
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

/// A tensor of a shape whose numbers lie there.
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

/// Where a tensor's numbers lie.
pub(super) fn place_of<S: Shape, T>(tensor: &Tensor<S, TensorAddress, Cpu, T>) -> DeviceAddress<f32> {
    tensor[S::Concrete::default()].into()
}

/// The slot of a tensor's gradient, for the place where it lies.
pub(super) fn slot<'a, S: Shape>(
    gradients: &'a mut Gradients<TensorAddress, Cpu>,
    of: &Tensor<S, TensorAddress, Cpu>,
) -> Result<&'a mut TensorAddress, OpError> {
    Ok(&mut gradients.get_or_alloc_mut(of)?[0])
}
