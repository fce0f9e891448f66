//! Pooling on the GPU: the largest number or the mean of each window of an image.

use super::super::abi::PoolGeometry;
use super::super::address::DeviceAddress;
use super::super::error::GpuError;
use super::super::gpu::{Gpu, Grid};
use super::super::kernels::{MaxPool, MaxPoolBack, MeanPool, MeanPoolBack};
use super::super::memory::Array;
use super::{BackwardArrays, ForwardArrays};
use crate::model::program::Pool;

fn geometry(pool: &Pool, samples: usize) -> PoolGeometry {
    PoolGeometry {
        planes: (pool.channels * samples) as u32,
        height: pool.height as u32,
        width: pool.width as u32,
        tall: pool.window.0 as u32,
        wide: pool.window.1 as u32,
    }
}

fn windows(pool: &Pool, samples: usize) -> Grid {
    Grid::each(samples * pool.output_len())
}

fn pixels(pool: &Pool, samples: usize) -> Grid {
    Grid::each(samples * pool.channels * pool.height * pool.width)
}

/// Launches max pooling.
///
/// # Safety
/// `at` must satisfy [`ForwardArrays`] for this layer, and `winners` must have room for one index per output.
pub(super) unsafe fn max(gpu: &Gpu, pool: &Pool, winners: &Array<u32>, at: ForwardArrays) -> Result<(), GpuError> {
    let arguments = MaxPool {
        x: at.x,
        by: geometry(pool, at.samples),
        y: at.y,
        winners: winners.at(),
    };
    // SAFETY: as the caller has promised; the grid has one thread per window.
    unsafe { gpu.launch(&gpu.kernels.max_pool, windows(pool, at.samples), arguments) }
}

/// Launches the backward pass of max pooling.
///
/// # Safety
/// `at` must satisfy [`BackwardArrays`] for this layer, including `dx`, and `winners` must hold the result of its
/// forward pass.
pub(super) unsafe fn max_back(
    gpu: &Gpu,
    pool: &Pool,
    winners: &Array<u32>,
    at: BackwardArrays,
    dx: DeviceAddress<f32>,
) -> Result<(), GpuError> {
    let arguments = MaxPoolBack {
        dy: at.dy,
        winners: winners.at(),
        by: geometry(pool, at.samples),
        dx,
    };
    let (tall, wide) = pool.window;
    // Windows at the edges may be cut off, and have no winner.
    let windows = pool.channels * at.samples * pool.height.div_ceil(tall) * pool.width.div_ceil(wide);
    // SAFETY: as the caller has promised; the grid has one thread per window.
    unsafe { gpu.launch(&gpu.kernels.max_pool_back, Grid::each(windows), arguments) }
}

/// Launches mean pooling.
///
/// # Safety
/// `at` must satisfy [`ForwardArrays`] for this layer.
pub(super) unsafe fn mean(gpu: &Gpu, pool: &Pool, at: ForwardArrays) -> Result<(), GpuError> {
    let arguments = MeanPool {
        x: at.x,
        by: geometry(pool, at.samples),
        y: at.y,
    };
    // SAFETY: as the caller has promised; the grid has one thread per window.
    unsafe { gpu.launch(&gpu.kernels.mean_pool, windows(pool, at.samples), arguments) }
}

/// Launches the backward pass of mean pooling.
///
/// # Safety
/// `at` must satisfy [`BackwardArrays`] for this layer, including `dx`.
pub(super) unsafe fn mean_back(
    gpu: &Gpu,
    pool: &Pool,
    at: BackwardArrays,
    dx: DeviceAddress<f32>,
) -> Result<(), GpuError> {
    let arguments = MeanPoolBack {
        dy: at.dy,
        by: geometry(pool, at.samples),
        dx,
    };
    // SAFETY: as the caller has promised; the grid has one thread per pixel.
    unsafe { gpu.launch(&gpu.kernels.mean_pool_back, pixels(pool, at.samples), arguments) }
}
