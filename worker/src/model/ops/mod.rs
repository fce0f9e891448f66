//! Operations on the CPU, on numbers stored in dfdx's tensors.
//!
//! All activations are matrices: one row per sample of the minibatch. The operation that reads a row knows its meaning
//! (a vector, or the planes of an image). All weights are one flat tensor, [`Parameters`]; an operation holds the
//! indices of its own. A parameter belongs to one operation, which *overwrites* its gradient rather than adding to it,
//! so the flat gradient needs no zeroing between steps.

mod activation;
mod backward_context;
mod bias_relu;
mod conv;
mod dense;
mod dropout;
mod exact;
mod layer;
pub mod loss;
pub mod matmul;
mod norm;
pub mod orthogonal;
mod pool;
mod seed;
mod tensor;

#[cfg(test)]
mod gradient_check;

pub use crate::model::tape::{OpError, Parameters};
pub use backward_context::{BackwardContext, DeferredWeightGradient};
pub use layer::{CpuLayer, Pass, Statistics, exact_network, network};
pub use loss::MeanLoss;
pub use seed::Seed;
pub use tensor::{Rows, from_rows, values};
