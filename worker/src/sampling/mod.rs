//! Sampling: decides which samples come next. Each worker plans its own shards, and claims those that others left
//! behind.

pub mod plan;
pub mod shards;
