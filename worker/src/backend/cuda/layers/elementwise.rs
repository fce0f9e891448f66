//! What is done to each number by itself: activations, dropout, and the turn from channels to rows.

use protocol::job::model::Activation;

use super::super::address::DeviceAddress;
use super::super::error::GpuError;
use super::super::gpu::{Gpu, Grid};
use super::super::kernels::{Activate, ActivateBack, Drop, SwapOuter};
use super::BackwardArrays;
use crate::model::program::Dropout;

/// The slope that kernels are told of an activation.
fn slope(activation: Activation) -> f32 {
    activation.slope().unwrap_or_default() as f32
}

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
    // SAFETY: as the caller has promised.
    unsafe { gpu.launch(&gpu.kernels.activate, Grid::each(total), arguments) }
}

/// # Safety
/// `at` must be as [`BackwardArrays`] asks for, for a layer that reads and writes `total` numbers, with `dx` in it.
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
    // SAFETY: as the caller has promised.
    unsafe { gpu.launch(&gpu.kernels.activate_back, Grid::each(total), arguments) }
}

/// Drops numbers at random, the same ones for the same key.
///
/// # Safety
/// Both arrays must have `total` numbers.
pub(super) unsafe fn drop(
    gpu: &Gpu,
    dropout: Dropout,
    step_key: u64,
    (from, to): (DeviceAddress<f32>, DeviceAddress<f32>),
    total: usize,
) -> Result<(), GpuError> {
    let arguments = Drop {
        x: from,
        y: to,
        total: total as u32,
        border: dropout.border(),
        kept: dropout.kept(),
        key: dropout.key(step_key),
    };
    // SAFETY: as the caller has promised.
    unsafe { gpu.launch(&gpu.kernels.dropout, Grid::each(total), arguments) }
}

/// From channels of samples to samples of channels, or back: `outer` times `inner` planes change their order.
///
/// # Safety
/// Both arrays must have so many planes.
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
    // SAFETY: as the caller has promised.
    unsafe { gpu.launch(&gpu.kernels.swap_outer, Grid::each(outer * inner * plane), arguments) }
}
