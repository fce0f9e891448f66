//! What computes: the CPU.

pub mod cpu;
mod update_pass;
