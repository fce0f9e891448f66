//! Models: what a user writes (`dense 512, relu, dense 10`), what it means for shapes, where its weights lie.
//!
//! All weights of a model share one flat index space, in the order in which a model file stores them: tensors by
//! their key, each row-major. Changes, digests and ledgers speak of nothing but these indices.

mod activation;
mod grammar;
mod initial;
mod layer_range;
mod layout;
mod memory;
mod shape;
mod stage;

pub use activation::Activation;
#[cfg(feature = "clap")]
pub(super) use grammar::help;
pub use grammar::{Layer, ModelSpec};
pub use initial::{initial_counts, initial_counts_at};
pub use layer_range::LayerRange;
pub use layout::{Layout, ModelError, PlacedBlock, PlacedLayer, Role, TensorSlot};
pub use shape::Shape;
pub use stage::{Partition, PartitionError, PipelineStage, StageSlice};
