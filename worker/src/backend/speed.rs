//! Estimates the compute speed of a worker, so that a network can be cut into pipeline stages that take machines of
//! different speed equally long.

use std::time::Instant;

#[cfg(feature = "cuda")]
use crate::backend::cuda::Gpu;
use crate::backend::device::Device;
use crate::machine::parallel::Threads;
use crate::model::ops::matmul::{Matrix, WriteMode, multiply};

/// Rows, columns and inner dimension of the matrix product that is timed to measure the CPU's speed.
const SIZES: [usize; 3] = [64, 1024, 512];
/// Number of times that the matrix product is computed to measure the CPU's speed. The fastest time counts, because
/// other processes may use the machine meanwhile.
const TRIALS: usize = 24;

/// Returns the measured speed of a device in million multiply-adds per second, or 0 if the measurement failed.
pub(crate) fn measure(device: &Device, threads: Threads) -> u64 {
    let products = match device {
        Device::Cpu => of_cpu(threads),
        #[cfg(feature = "cuda")]
        Device::Cuda { ordinal, precision, .. } => {
            let speed = Gpu::open(*ordinal, *precision).and_then(|gpu| gpu.speed());
            speed.unwrap_or_else(|error| {
                tracing::warn!(
                    event = "gpu_speed_measurement_failed",
                    "the speed of the GPU could not be measured: {error}"
                );
                0.0
            })
        }
    };
    (products / 1e6).round() as u64
}

/// Returns the measured speed of the CPU in multiply-adds per second.
fn of_cpu(threads: Threads) -> f64 {
    let [rows, columns, inner] = SIZES;
    let (a, b) = (vec![1.0; rows * inner], vec![1.0; inner * columns]);
    let mut product = vec![0.0; rows * columns];
    let mut trial = || {
        let begun = Instant::now();
        let (a, b) = (
            Matrix::row_major(&a, rows, inner),
            Matrix::row_major(&b, inner, columns),
        );
        multiply(a, b, &mut product, WriteMode::Overwrite, threads);
        begun.elapsed()
    };
    let fastest = (0..TRIALS).map(|_| trial()).min().unwrap_or_default();
    (rows * columns * inner) as f64 / fastest.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_computes_something() {
        assert!(measure(&Device::Cpu, Threads(1)) > 10);
    }
}
