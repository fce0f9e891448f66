//! Gradients of biases on the GPU: column sums over a minibatch, computed in parts that keep the device busy.

use super::super::address::DeviceAddress;
use super::super::error::GpuError;
use super::super::gpu::{Gpu, Grid};
use super::super::kernels::AddParts;

/// Largest number of parts into which the sum over a matrix column is divided, to keep the GPU busy.
pub(super) const PARTS_MAX: usize = 32;
/// Number of GPU thread blocks that keeps a large GPU busy.
pub(super) const BLOCKS_BUSY: usize = 512;

/// Returns the number of parts into which each sum is divided, with `blocks` thread blocks for each part, so that
/// enough thread blocks run. With more than `parts_useful` parts, each would have too little work.
pub(super) fn parts(blocks: usize, parts_useful: usize) -> usize {
    (BLOCKS_BUSY / blocks.max(1)).clamp(1, PARTS_MAX).min(parts_useful)
}

/// Launches the addition of each column's partial sums.
///
/// # Safety
/// `sums` must have `parts` times `columns` numbers, and `gradient` room for `columns`.
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
    // SAFETY: as the caller has promised; one thread handles one column.
    unsafe { gpu.launch(&gpu.kernels.add_parts, Grid::each(columns), arguments) }
}
