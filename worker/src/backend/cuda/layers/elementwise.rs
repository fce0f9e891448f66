//! What is done to each number by itself: activations, dropout, and the turn from channels to rows.

use super::super::address::DeviceAddress;
use super::super::error::GpuError;
use super::super::gpu::{Gpu, Grid};
use super::super::kernels::{Activate, ActivateBack, Drop, SwapOuter};
use super::{BackwardArrays, ForwardArrays};
use crate::model::program::{Activation, Dropout};

/// # Safety
/// `at` must be as [`ForwardArrays`] asks for, for a layer that reads and writes `total` numbers.
pub(super) unsafe fn activate(
    gpu: &Gpu,
    activation: Activation,
    total: usize,
    at: ForwardArrays,
) -> Result<(), GpuError> {
    let kernel = match activation {
        Activation::Relu => &gpu.kernels.relu,
        Activation::Tanh => &gpu.kernels.tanh_all,
        Activation::Sigmoid => &gpu.kernels.sigmoid,
        Activation::Gelu => &gpu.kernels.gelu,
        Activation::Silu => &gpu.kernels.silu,
        Activation::LeakyRelu(_) => &gpu.kernels.leaky_relu,
    };
    let arguments = Activate {
        x: at.x,
        y: at.y,
        total: total as u32,
        slope: slope(activation),
    };
    // SAFETY: as the caller has promised.
    unsafe { gpu.launch(kernel, Grid::each(total), arguments) }
}

/// How steep it is below zero, for a leaky relu.
fn slope(activation: Activation) -> f32 {
    match activation {
        Activation::LeakyRelu(slope) => slope,
        _ => 0.0,
    }
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
    let kernel = match activation {
        Activation::Relu => &gpu.kernels.relu_back,
        Activation::Tanh => &gpu.kernels.tanh_all_back,
        Activation::Sigmoid => &gpu.kernels.sigmoid_back,
        Activation::Gelu => &gpu.kernels.gelu_back,
        Activation::Silu => &gpu.kernels.silu_back,
        Activation::LeakyRelu(_) => &gpu.kernels.leaky_relu_back,
    };
    let arguments = ActivateBack {
        x: at.x,
        y: at.y,
        dy: at.dy,
        dx,
        total: total as u32,
        slope: slope(activation),
    };
    // SAFETY: as the caller has promised.
    unsafe { gpu.launch(kernel, Grid::each(total), arguments) }
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
