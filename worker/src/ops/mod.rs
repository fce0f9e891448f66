//! Taped operations on dfdx tensors, where dfdx has none on a stable compiler (convolution, pooling) or where
//! fusing pays (dense + bias + relu, softmax + cross-entropy).
//!
//! All activations are matrices: one row per sample of the minibatch. What a row means (a vector, or planes of an
//! image) is in the operation that reads it. All weights are one flat tensor, [`Parameters`]; an operation is told
//! its ranges. A parameter belongs to one operation, which *writes* its gradient rather than adding to it, so the
//! flat gradient needs no zeroing between steps.

mod bias_relu;
pub mod conv;
pub mod dense;
pub mod dropout;
pub mod gelu;
pub mod loss;
mod matmul;
mod parameters;
pub mod pool;
mod tensor;

#[cfg(test)]
mod gradient_check;

pub use parameters::Parameters;
pub use tensor::{Activations, Device, OpError, from_rows, values};

/// The number of threads an operation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads(pub usize);
