//! Shards: one epoch's samples, dealt to the worker slots and cut into pieces that another slot can take over.

mod allot;
mod classes;
mod deal;
mod interleave;
#[cfg(test)]
mod properties;
mod shard_plan;

pub use shard_plan::ShardPlan;
