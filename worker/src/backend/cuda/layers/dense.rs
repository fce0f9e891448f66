//! The dense layer on the GPU: `y = x Wᵀ + b`, fused with a following relu.

use super::super::error::GpuError;
use super::super::gpu::{Gpu, Grid};
use super::super::kernels::{AddBias, BiasRows4, BiasRows4Back, BiasRowsBack};
use super::super::products::{Epilogue, Matrix, Product, Sizes};
use super::sums::{add_parts, parts};
use super::{BackwardArrays, ForwardArrays};
use crate::model::program::Dense;

/// Number of columns that one thread block sums up, in `ROWS` rows of threads, when columns of a matrix are summed.
const COLUMNS: usize = 32;
const ROWS: usize = 8;

/// Launches the forward pass of a dense layer.
///
/// # Safety
/// `at` must satisfy [`ForwardArrays`] for this layer.
pub(super) unsafe fn forward(gpu: &Gpu, dense: &Dense, at: ForwardArrays) -> Result<(), GpuError> {
    let Dense { inputs, outputs, .. } = *dense;
    let bias = at.weights.plus(dense.bias.start);
    let plain = Product {
        sizes: Sizes {
            rows: outputs,
            columns: at.samples,
            inner: inputs,
        },
        a: Matrix::transposed(at.weights.plus(dense.weight.start), inputs),
        b: Matrix::plain(at.x, inputs),
        out: Matrix::plain(at.y, outputs),
        epilogue: Epilogue::Nothing,
    };
    let epilogue = if dense.relu {
        Epilogue::BiasRelu(bias)
    } else {
        Epilogue::Bias(bias)
    };
    // SAFETY: the layout places this layer's weights at `dense.weight` and `dense.bias`; the caller promises the rest.
    unsafe {
        if gpu.products.try_multiply(Product { epilogue, ..plain })? {
            return Ok(());
        }
        // The library has no algorithm if the bias is not aligned; then another kernel adds it.
        gpu.products.multiply(plain)?;
        add_bias(gpu, dense, at)
    }
}

/// Launches the addition of a dense layer's bias, and relu.
///
/// # Safety
/// `at` must satisfy [`ForwardArrays`], and `y` must hold the product.
unsafe fn add_bias(gpu: &Gpu, dense: &Dense, at: ForwardArrays) -> Result<(), GpuError> {
    let outputs = dense.outputs;
    let total = at.samples * outputs;
    let (y, bias, relu) = (at.y, at.weights.plus(dense.bias.start), u32::from(dense.relu));
    // SAFETY: as the caller has promised; the kernel has one thread per number (or four numbers) of `total`.
    unsafe {
        if outputs.is_multiple_of(4) {
            let arguments = BiasRows4 {
                y,
                bias,
                fours: (outputs / 4) as u32,
                total: (total / 4) as u32,
                relu,
            };
            gpu.launch(&gpu.kernels.bias_rows4, Grid::each(total / 4), arguments)
        } else {
            let arguments = AddBias {
                y,
                bias,
                inner: 1,
                outputs: outputs as u32,
                total: total as u32,
                relu,
            };
            gpu.launch(&gpu.kernels.bias, Grid::each(total), arguments)
        }
    }
}

/// Launches the backward pass of a dense layer.
///
/// # Safety
/// `at` must satisfy [`BackwardArrays`] for this layer.
pub(super) unsafe fn backward(gpu: &Gpu, dense: &Dense, at: BackwardArrays) -> Result<(), GpuError> {
    let Dense { inputs, outputs, .. } = *dense;
    // SAFETY: the layout places this layer's weights at `dense.weight` and `dense.bias`; the caller promises the rest.
    unsafe {
        // Relu must have passed before anything reads the gradient.
        let parts = dense.relu.then(|| bias_back(gpu, dense, at)).transpose()?;
        let weight_gradient = Product {
            sizes: Sizes {
                rows: inputs,
                columns: outputs,
                inner: at.samples,
            },
            a: Matrix::plain(at.x, inputs),
            b: Matrix::transposed(at.dy, outputs),
            out: Matrix::plain(at.gradient.plus(dense.weight.start), inputs),
            epilogue: Epilogue::Nothing,
        };
        gpu.branch(|| {
            let parts = parts.map_or_else(|| bias_back(gpu, dense, at), Ok)?;
            add_parts(gpu, at.sums, parts, outputs, at.gradient.plus(dense.bias.start))?;
            gpu.products.multiply(weight_gradient)
        })?;
        let Some(dx) = at.dx else {
            return Ok(());
        };
        gpu.products.multiply(Product {
            sizes: Sizes {
                rows: inputs,
                columns: at.samples,
                inner: outputs,
            },
            a: Matrix::plain(at.weights.plus(dense.weight.start), inputs),
            b: Matrix::plain(at.dy, outputs),
            out: Matrix::plain(dx, inputs),
            epilogue: Epilogue::Nothing,
        })
    }
}

/// Launches a dense layer's backward pass through relu and bias: zeroes the gradient where relu did, and sums up its
/// columns in parts, whose number is returned.
///
/// # Safety
/// `at` must satisfy [`BackwardArrays`] for this layer.
unsafe fn bias_back(gpu: &Gpu, dense: &Dense, at: BackwardArrays) -> Result<usize, GpuError> {
    let (outputs, rows, relu) = (dense.outputs, at.samples as u32, u32::from(dense.relu));
    let BackwardArrays { dy, y, sums, .. } = at;
    let in_fours = outputs.is_multiple_of(4);
    let columns = if in_fours { outputs / 4 } else { outputs };
    let blocks = columns.div_ceil(COLUMNS);
    let parts = parts(blocks, at.samples.div_ceil(ROWS));
    let grid = Grid {
        blocks: (blocks, parts),
        threads: (COLUMNS, ROWS),
    };
    // SAFETY: as the caller has promised; `sums` has room for all parts.
    unsafe {
        if in_fours {
            let arguments = BiasRows4Back {
                dy,
                y,
                rows,
                fours: columns as u32,
                relu,
                sums,
            };
            gpu.launch(&gpu.kernels.bias_rows4_back, grid, arguments)?;
        } else {
            let arguments = BiasRowsBack {
                dy,
                y,
                rows,
                columns: columns as u32,
                relu,
                sums,
            };
            gpu.launch(&gpu.kernels.bias_rows_back, grid, arguments)?;
        }
    }
    Ok(parts)
}
