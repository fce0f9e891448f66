//! What gradients come from: a whole network, or a stage of one whose other stages lie elsewhere.

use protocol::rng::splitmix64;

use crate::trainer::TrainError;

/// The key of a step, which decides what is dropped in it.
pub(crate) fn step_key(seed: u64, step: u64) -> u64 {
    splitmix64(seed ^ step)
}

/// What gradients come from, on some device.
pub trait GradientSource {
    /// The weights, as the device has them.
    type Weights;
    /// Where a gradient is written.
    type Gradient;
    /// The mean loss of a minibatch, or where it will be.
    type Loss;
    /// The shared weights, as the device has them.
    type Shared: ?Sized;

    /// Whether its device works by itself, so that the host can do something else until the gradient is needed.
    const WORKS_ALONE: bool = false;

    /// Computes the mean loss of a minibatch and replaces `gradient` by its gradient, or begins to. The key decides dropout.
    fn gradient(
        &mut self,
        weights: &Self::Weights,
        samples: &[u32],
        key: u64,
        gradient: &mut Self::Gradient,
    ) -> Result<Self::Loss, TrainError>;
}
