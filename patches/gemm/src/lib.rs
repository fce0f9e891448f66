//! `gemm` 0.15's name and interface, `gemm` 0.19's kernels.

pub use newest::*;
