//! Why there is no GPU to train on, or none any more.

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use thiserror::Error;

use crate::model::tape::OpError;
use crate::trainer::TrainError;

/// Why there is no GPU to train on.
#[derive(Debug, Error)]
pub enum GpuError {
    /// There is no driver.
    #[error("this machine has no CUDA driver ({0} is not found): install NVIDIA's driver, or use --device cpu")]
    NoDriver(&'static str),
    /// A library of CUDA's is missing.
    #[error(
        "CUDA's {0} is not found: install the CUDA toolkit and add its lib folder to LD_LIBRARY_PATH, or use --device cpu"
    )]
    NoLibrary(&'static str),
    /// There are not so many GPUs.
    #[error("GPU {wanted} does not exist: this machine has {found} GPU(s), counted from 0")]
    NoDevice {
        /// The one asked for.
        wanted: usize,
        /// How many there are.
        found: usize,
    },
    /// The kernels do not compile here.
    #[error("the GPU's kernels could not be compiled: {0}")]
    Kernels(String),
    /// A layer has more numbers than can be counted.
    #[error(
        "a minibatch of {minibatch} samples is too large for the GPU at the layer with {outputs} outputs per sample: \
         use a smaller --minibatch"
    )]
    TooLarge {
        /// The minibatch.
        minibatch: usize,
        /// The layer's outputs for one sample.
        outputs: usize,
    },
    /// A block that is made orthogonal has too many rows.
    #[error("on a GPU, muon orthogonalises blocks of at most {0} rows: use muon with block={0}, or --device cpu")]
    BlockTooLarge(u32),
    /// The matrix library has no way to compute a product.
    #[error("cuBLASLt has no algorithm for a matrix product of size {0:?}")]
    NoProduct((usize, usize, usize)),
    /// The driver failed.
    #[error("the GPU failed: {0}")]
    Failed(DriverError),
    /// Its memory is full.
    #[error("the GPU has too little free memory: use a smaller minibatch or model, or fewer workers on this GPU")]
    NoMemory,
    /// The host's memory is full.
    #[error("the machine has too little free main memory to drive the GPU: {0}")]
    Host(#[from] OpError),
    /// The matrix library failed.
    #[error("cuBLASLt failed: {0}")]
    Products(#[from] CublasError),
}

impl From<DriverError> for GpuError {
    fn from(error: DriverError) -> Self {
        match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Self::NoMemory,
            _ => Self::Failed(error),
        }
    }
}

impl From<GpuError> for TrainError {
    fn from(error: GpuError) -> Self {
        Self::Device(error.to_string())
    }
}
