//! Matrix products by the `gemm` crate's kernel for f32, with checked shapes.

use std::mem::MaybeUninit;

use gemm_common::Parallelism;

use crate::machine::parallel::Threads;

/// A matrix in a slice of numbers. Transposing it swaps sizes and strides.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    pub fn row_major(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(
            values.len(),
            rows * columns,
            "the number of values is not rows × columns"
        );
        Self {
            values,
            rows,
            columns,
            row_stride: columns,
            column_stride: 1,
        }
    }

    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// Tells if a product overwrites its destination or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    Overwrite,
    Add,
}

/// Computes `out = lhs · rhs` or `out += lhs · rhs`, row-major.
pub fn multiply(lhs: Matrix<'_>, rhs: Matrix<'_>, out: &mut [f32], write_mode: WriteMode, threads: Threads) {
    assert_eq!(
        out.len(),
        lhs.rows * rhs.columns,
        "the output has another size than the matrix product"
    );
    // SAFETY: `out` holds exactly the product's elements, all initialised.
    unsafe { gemm_into(lhs, rhs, out.as_mut_ptr(), write_mode, threads) }
}

/// Returns the product of two matrices in newly allocated memory, which is not cleared first.
pub(super) fn product(lhs: Matrix<'_>, rhs: Matrix<'_>, threads: Threads) -> Vec<f32> {
    let len = lhs.rows * rhs.columns;
    let mut out = Vec::with_capacity(len);
    multiply_fresh(lhs, rhs, &mut out.spare_capacity_mut()[..len], threads);
    // SAFETY: `multiply_fresh` has initialised `len` elements.
    unsafe { out.set_len(len) };
    out
}

/// Writes the product of two matrices to all of some uninitialised memory, and returns that memory as initialised.
pub(super) fn multiply_fresh<'a>(
    lhs: Matrix<'_>,
    rhs: Matrix<'_>,
    out: &'a mut [MaybeUninit<f32>],
    threads: Threads,
) -> &'a mut [f32] {
    assert_eq!(
        out.len(),
        lhs.rows * rhs.columns,
        "the output has another size than the matrix product"
    );
    let place = out.as_mut_ptr().cast();
    // SAFETY: `out` has room for exactly the product; overwriting reads none of it and writes all of it.
    unsafe {
        gemm_into(lhs, rhs, place, WriteMode::Overwrite, threads);
        std::slice::from_raw_parts_mut(place, out.len())
    }
}

/// Computes a matrix product with the `gemm` kernel, which gets the product transposed.
///
/// # Safety
/// `out` must be valid for writing `lhs.rows * rhs.columns` floats, and initialised if they are added to.
unsafe fn gemm_into(lhs: Matrix<'_>, rhs: Matrix<'_>, out: *mut f32, write_mode: WriteMode, threads: Threads) {
    assert_eq!(lhs.columns, rhs.rows, "the inner dimensions of the matrices differ");
    let (add, alpha) = match write_mode {
        WriteMode::Overwrite => (false, 0.0),
        WriteMode::Add => (true, 1.0),
    };
    let parallelism = match threads.0 {
        0 | 1 => Parallelism::None,
        many => Parallelism::Rayon(many),
    };
    let (rows, columns) = (lhs.rows, rhs.columns);
    // The kernel is fastest with contiguous columns, so it computes the transposed product, whose columns are our rows.
    let (lhs, rhs) = (rhs.transposed(), lhs.transposed());
    // SAFETY: `Matrix` keeps its strides within its slice; the caller promises that `out` is valid.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            columns,
            rows,
            lhs.columns,
            out,
            columns as isize,
            1,
            add,
            lhs.values.as_ptr(),
            lhs.column_stride as isize,
            lhs.row_stride as isize,
            rhs.values.as_ptr(),
            rhs.column_stride as isize,
            rhs.row_stride as isize,
            alpha,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_all_orientations() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let b = [1.0, 0.0, 2.0, 1.0, 0.0, 3.0];
        let one = Threads(1);
        let plain = product(Matrix::row_major(&a, 2, 3), Matrix::row_major(&b, 3, 2), one);
        assert_eq!(plain, [5.0, 11.0, 14.0, 23.0]);
        let left = product(
            Matrix::row_major(&a, 3, 2).transposed(),
            Matrix::row_major(&b, 3, 2),
            one,
        );
        assert_eq!(left, [7.0, 18.0, 10.0, 22.0]);
        let right = product(
            Matrix::row_major(&a, 2, 3),
            Matrix::row_major(&b, 2, 3).transposed(),
            one,
        );
        assert_eq!(right, [7.0, 10.0, 16.0, 22.0]);
        let mut sum = vec![1.0; 4];
        multiply(
            Matrix::row_major(&a, 2, 3),
            Matrix::row_major(&b, 3, 2),
            &mut sum,
            WriteMode::Add,
            Threads(2),
        );
        assert_eq!(sum, [6.0, 12.0, 15.0, 24.0]);
    }
}
