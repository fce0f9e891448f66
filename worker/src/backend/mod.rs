//! What computes: the CPU, or a GPU.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod residual;
mod turns;
mod update_pass;
