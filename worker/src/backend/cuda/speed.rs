//! Measurement of a GPU's compute speed.

use std::time::Instant;

use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::Array;
use super::products::{Epilogue, Matrix, Product, Sizes};

/// Number of rows and columns of the square matrices whose product is timed; `TRIALS` is the number of times that it is
/// computed.
const SIDE: usize = 1024;
const TRIALS: u32 = 16;

impl Gpu {
    /// Measures the GPU's speed in multiply-adds per second.
    pub fn speed(&self) -> Result<f64, GpuError> {
        let square = || Array::zeros(self, SIDE * SIDE);
        let (a, b, out) = (square()?, square()?, square()?);
        let product = Product {
            sizes: Sizes {
                rows: SIDE,
                columns: SIDE,
                inner: SIDE,
            },
            a: Matrix::plain(a.at(), SIDE),
            b: Matrix::plain(b.at(), SIDE),
            out: Matrix::plain(out.at(), SIDE),
            epilogue: Epilogue::Nothing,
        };
        // SAFETY: all three arrays are `SIDE` by `SIDE`, and live until the stream was waited for.
        let multiply = || unsafe { self.products.multiply(product) };
        // The first product is not timed: it searches for the fastest algorithm.
        multiply()?;
        self.wait()?;
        let begun = Instant::now();
        for _ in 0..TRIALS {
            multiply()?;
        }
        self.wait()?;
        Ok(SIDE.pow(3) as f64 * f64::from(TRIALS) / begun.elapsed().as_secs_f64())
    }
}
