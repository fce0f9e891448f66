//! Operations on the GPU that compute each number by itself: activations, dropout, and reordering between channels and
//! rows.

use protocol::job::model::Activation;

use super::super::address::DeviceAddress;
use super::super::error::GpuError;
use super::super::gpu::{Gpu, Grid};
use super::super::kernels::{Activate, ActivateBack, Drop, SwapOuter};
use super::{BackwardArrays, StepKey};
use crate::model::program::Dropout;

/// Returns the slope below zero of an activation function; 0 if it has none that can be set.
fn slope(activation: Activation) -> f32 {
    activation.slope().unwrap_or_default() as f32
}

/// Launches the kernel that applies an activation function to the numbers of one array, and writes the results to
/// another.
///
/// # Safety
/// Both arrays must have `total` numbers.
pub(super) unsafe fn activate(
    gpu: &Gpu,
    activation: Activation,
    total: usize,
    (from, to): (DeviceAddress<f32>, DeviceAddress<f32>),
) -> Result<(), GpuError> {
    let arguments = Activate {
        x: from,
        y: to,
        total: total as u32,
        kind: activation.number() as u32,
        slope: slope(activation),
    };
    // SAFETY: the caller promises arrays of the sizes that the kernels read and write.
    unsafe { gpu.launch(&gpu.kernels.activate, Grid::each(total), arguments) }
}

/// Launches the backward pass of an activation.
///
/// # Safety
/// `at` must satisfy [`BackwardArrays`] for a layer that reads and writes `total` numbers, including `dx`.
pub(super) unsafe fn activate_back(
    gpu: &Gpu,
    activation: Activation,
    total: usize,
    at: BackwardArrays,
    dx: DeviceAddress<f32>,
) -> Result<(), GpuError> {
    let arguments = ActivateBack {
        x: at.x,
        y: at.y,
        dy: at.dy,
        dx,
        total: total as u32,
        kind: activation.number() as u32,
        slope: slope(activation),
    };
    // SAFETY: the caller promises arrays of the sizes that the kernels read and write.
    unsafe { gpu.launch(&gpu.kernels.activate_back, Grid::each(total), arguments) }
}

/// Launches dropout; the same key drops the same numbers.
///
/// # Safety
/// Both arrays must have `total` numbers.
pub(super) unsafe fn drop(
    gpu: &Gpu,
    dropout: Dropout,
    step_key: StepKey,
    (from, to): (DeviceAddress<f32>, DeviceAddress<f32>),
    total: usize,
) -> Result<(), GpuError> {
    let (step_key, step) = match step_key {
        StepKey::Known(key) => (key, DeviceAddress::new(0)),
        StepKey::OnDevice(at) => (0, at),
    };
    let arguments = Drop {
        x: from,
        y: to,
        total: total as u32,
        border: dropout.border(),
        kept: dropout.kept(),
        key: dropout.key(step_key),
        step,
    };
    // SAFETY: the caller promises arrays of the sizes that the kernels read and write.
    unsafe { gpu.launch(&gpu.kernels.dropout, Grid::each(total), arguments) }
}

/// Launches a reordering of `outer` times `inner` planes to `inner` times `outer`: from channels of samples to samples
/// of channels, or back.
///
/// # Safety
/// Both arrays must have `outer * inner` planes.
pub(super) unsafe fn swap_outer(
    gpu: &Gpu,
    plane: usize,
    (outer, inner): (usize, usize),
    (from, to): (DeviceAddress<f32>, DeviceAddress<f32>),
) -> Result<(), GpuError> {
    let arguments = SwapOuter {
        x: from,
        outer: outer as u32,
        inner: inner as u32,
        plane: plane as u32,
        y: to,
    };
    // SAFETY: the caller promises arrays of the sizes that the kernels read and write.
    unsafe { gpu.launch(&gpu.kernels.swap_outer, Grid::each(outer * inner * plane), arguments) }
}
