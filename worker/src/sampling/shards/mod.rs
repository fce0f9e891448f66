//! Shards: one epoch's samples, dealt to the worker slots and cut into runs that can be handed over.

mod allot;
mod classes;
mod deal;
mod interleave;
#[cfg(test)]
mod properties;
mod shard_plan;

pub use shard_plan::ShardPlan;
