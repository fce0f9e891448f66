//! Tau's worker.

pub mod dataset;
