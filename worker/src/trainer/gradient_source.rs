//! The interface to gradients: of a whole network, or of a stage whose other stages are computed elsewhere.

use protocol::rng::splitmix64;

use crate::trainer::TrainError;

/// Returns the random key of a training step, which decides dropout in it.
pub(crate) fn step_key(seed: u64, step: u64) -> u64 {
    splitmix64(seed ^ step)
}

/// A network, or a stage of one, that computes gradients on some device.
pub trait GradientSource {
    /// Type of the weights on the device.
    type Weights;
    /// Type of the array on the device that receives a gradient.
    type Gradient;
    /// Type of a minibatch's mean loss, or of the place where the device will write it.
    type Loss;
    /// Type of the shared weights (the copy that only batches move) on the device.
    type Shared: ?Sized;

    /// True if the device works by itself, so that the host can do something else until the gradient is needed.
    const WORKS_ALONE: bool = false;

    /// Computes the mean loss of a minibatch and its gradient, or begins to. The result replaces the contents of
    /// `gradient`. The random key decides dropout.
    fn gradient(
        &mut self,
        weights: &Self::Weights,
        samples: &[u32],
        key: u64,
        gradient: &mut Self::Gradient,
    ) -> Result<Self::Loss, TrainError>;
}
