//! Errors of GPUs: none is usable, or the one in use has failed.

use cudarc::cublaslt::result::CublasError;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use thiserror::Error;

use crate::model::tape::OpError;
use crate::trainer::TrainError;

/// Reason why a GPU cannot be used for training.
#[derive(Debug, Error)]
pub enum GpuError {
    /// The CUDA driver is not installed.
    #[error("this machine has no CUDA driver ({0} is not found): install NVIDIA's driver, or use --device cpu")]
    NoDriver(&'static str),
    /// A CUDA library is missing.
    #[error(
        "CUDA's {0} is not found: install the CUDA toolkit and add its lib folder to LD_LIBRARY_PATH, or use --device cpu"
    )]
    NoLibrary(&'static str),
    /// No GPU has the requested number.
    #[error("GPU {wanted} does not exist: this machine has {found} GPU(s), counted from 0")]
    NoDevice {
        /// Number of the requested GPU.
        wanted: usize,
        /// Number of GPUs in the machine.
        found: usize,
    },
    /// The kernels could not be compiled.
    #[error("the GPU's kernels could not be compiled: {0}")]
    Kernels(String),
    /// A layer has more numbers than the kernels' 32-bit indices can count.
    #[error(
        "a minibatch of {minibatch} samples is too large for the GPU at the layer with {outputs} outputs per sample: \
         use a smaller --minibatch"
    )]
    TooLarge {
        /// Number of samples in the minibatch.
        minibatch: usize,
        /// Number of outputs of the layer for one sample.
        outputs: usize,
    },
    /// A block to be made orthogonal (Muon) has too many rows; holds the largest number allowed.
    #[error("on a GPU, muon orthogonalises blocks of at most {0} rows: use muon with block={0}, or --device cpu")]
    BlockTooLarge(u32),
    /// cuBLASLt has no algorithm for a matrix product of this size.
    #[error("cuBLASLt has no algorithm for a matrix product of size {0:?}")]
    NoProduct((usize, usize, usize)),
    /// The driver reported an error.
    #[error("the GPU failed: {0}")]
    Failed(DriverError),
    /// The GPU's memory is full.
    #[error("the GPU has too little free memory: use a smaller minibatch or model, or fewer workers on this GPU")]
    NoMemory,
    /// The host's memory is full.
    #[error("the machine has too little free main memory to drive the GPU: {0}")]
    Host(#[from] OpError),
    /// cuBLASLt reported an error.
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
