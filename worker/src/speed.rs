//! How fast a worker is, about: so that a network can be cut into portions that take machines of different speed as long.

use std::time::{Duration, Instant};

#[cfg(feature = "cuda")]
use crate::backend::cuda::Gpu;
use crate::device::Device;
use crate::ops::Threads;
use crate::ops::matmul::{Into, Matrix, multiply};

/// Rows, columns and the length of sums of the product that is timed.
const SIZES: [usize; 3] = [64, 1024, 512];
/// How often it is. The fastest counts: others may be at work beside it.
const TRIALS: usize = 24;

/// Million products a second; 0 if that cannot be found out.
pub(crate) fn measure(device: &Device, threads: Threads) -> u64 {
    match device {
        Device::Cpu => of_cpu(threads),
        #[cfg(feature = "cuda")]
        Device::Cuda { ordinal, precision, .. } => {
            let speed = Gpu::open(*ordinal, *precision).and_then(|gpu| gpu.speed());
            speed.unwrap_or_else(|error| {
                tracing::warn!("how fast the GPU is could not be found out: {error}");
                0
            })
        }
    }
}

fn of_cpu(threads: Threads) -> u64 {
    let [rows, columns, inner] = SIZES;
    let (a, b) = (vec![1.0; rows * inner], vec![1.0; inner * columns]);
    let mut product = vec![0.0; rows * columns];
    let mut trial = || {
        let begun = Instant::now();
        let (a, b) = (
            Matrix::row_major(&a, rows, inner),
            Matrix::row_major(&b, inner, columns),
        );
        multiply(a, b, &mut product, Into::Overwrite, threads);
        begun.elapsed()
    };
    let fastest = (0..TRIALS).map(|_| trial()).min().unwrap_or_default();
    rate(rows * columns * inner, fastest)
}

/// Million a second.
pub(crate) fn rate(products: usize, time: Duration) -> u64 {
    let micros = time.as_nanos().max(1) as f64 / 1e3;
    (products as f64 / micros).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_computes_something() {
        assert_eq!(rate(3_000_000, Duration::from_secs(1)), 3);
        assert!(measure(&Device::Cpu, Threads(1)) > 10);
    }
}
