//! The gradient of a bias: the sum of a whole minibatch's gradients, in parts that keep the device busy.

use super::super::address::DeviceAddress;
use super::super::error::GpuError;
use super::super::gpu::{Gpu, Grid};
use super::super::kernels::AddParts;

/// Parts that column sums are computed in, at most.
pub(in super::super) const PARTS_MAX: usize = 32;
/// Blocks that together keep a large GPU busy.
pub(super) const BLOCKS_BUSY: usize = 512;

/// In how many parts a sum is computed that as many blocks can compute side by side, each with enough to do.
pub(super) fn parts(blocks: usize, parts_useful: usize) -> usize {
    (BLOCKS_BUSY / blocks.max(1)).clamp(1, PARTS_MAX).min(parts_useful)
}

/// Adds up the parts of each column.
///
/// # Safety
/// `sums` must have so many parts of so many columns, and `gradient` room for the columns.
pub(super) unsafe fn add_parts(
    gpu: &Gpu,
    sums: DeviceAddress<f32>,
    parts: usize,
    columns: usize,
    gradient: DeviceAddress<f32>,
) -> Result<(), GpuError> {
    let arguments = AddParts {
        sums,
        parts: parts as u32,
        columns: columns as u32,
        gradient,
    };
    // SAFETY: as the caller has promised; one thread adds up one column.
    unsafe { gpu.launch(&gpu.kernels.add_parts, Grid::each(columns), arguments) }
}
