//! Models: the layer grammar that users write (`dense 512, relu, dense 10`), the shapes that follow, and the place of
//! each weight.
//!
//! All weights of a model share one flat index space, in the order in which a model file stores them: tensors sorted by
//! key, each row-major. Changes, digests and ledgers name weights by these indices only.

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
pub(super) use grammar::names_module;
pub use grammar::{Layer, ModelSpec};
pub use initial::{initial_counts, initial_counts_at};
pub use layer_range::LayerRange;
pub use layout::{Layout, ModelError, PlacedBlock, PlacedLayer, Role, TensorSlot};
pub use shape::Shape;
pub use stage::{Partition, PartitionError, PipelineStage, StageSlice};
