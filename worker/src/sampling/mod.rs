//! Which samples come next: each worker plans its own share, and what others left behind.

pub mod plan;
pub mod shards;
