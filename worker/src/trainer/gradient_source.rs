//! The interface to gradients: of a whole network, or of a stage whose other stages are computed elsewhere.

use protocol::rng::splitmix64;

use crate::trainer::TrainError;

/// Returns the key of a step, which decides dropout in it.
pub(crate) fn step_key(seed: u64, step: u64) -> u64 {
    splitmix64(seed ^ step)
}

/// A network, or a stage of one, that computes gradients on some device.
pub trait GradientSource {
    /// The weights, in the form of the device.
    type Weights;
    /// The array that receives a gradient.
    type Gradient;
    /// The mean loss of a minibatch, or the place where the device will write it.
    type Loss;
    /// The shared weights, in the form of the device.
    type Shared: ?Sized;

    /// True if the device works by itself, so that the host can do something else until the gradient is needed.
    const WORKS_ALONE: bool = false;

    /// Computes the mean loss of a minibatch and its gradient, which replaces `gradient`, or begins to. The key decides
    /// dropout.
    fn gradient(
        &mut self,
        weights: &Self::Weights,
        samples: &[u32],
        key: u64,
        gradient: &mut Self::Gradient,
    ) -> Result<Self::Loss, TrainError>;
}
