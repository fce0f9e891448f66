//! Estimates of the memory that a model takes in training.

use super::{Layer, Layout, PlacedLayer};

const NUMBER: u64 = size_of::<f32>() as u64;

impl Layout {
    /// Returns an estimate of the bytes that training takes, without the dataset: weights, gradient, residual, ledger,
    /// `state_arrays` arrays of optimiser state, and the activations and gradients of a minibatch in all layers.
    #[must_use]
    pub fn training_bytes(&self, minibatch: usize, state_arrays: usize) -> u64 {
        let arrays = 4 + state_arrays as u64;
        NUMBER * (arrays * self.weights as u64 + 2 * activations(&self.layers) * minibatch as u64)
    }

    /// Returns an estimate of the bytes to which convolutions unfold a minibatch, forward and backward, on a device
    /// that unfolds: of all convolutions or, if they share one buffer (`in_one_place`), of the largest.
    #[must_use]
    pub fn unfolding_bytes(&self, minibatch: usize, in_one_place: bool) -> u64 {
        let (all, largest) = unfolded(&self.layers);
        2 * NUMBER * minibatch as u64 * if in_one_place { largest } else { all }
    }

    /// Returns an estimate of the bytes that the evaluation of a minibatch takes on a device that unfolds convolutions,
    /// without the weights.
    #[must_use]
    pub fn measuring_bytes(&self, minibatch: usize) -> u64 {
        let (_, largest) = unfolded(&self.layers);
        NUMBER * minibatch as u64 * (activations(&self.layers) + largest)
    }
}

/// Returns the number of values that these layers together write for one sample.
pub(super) fn activations(layers: &[PlacedLayer]) -> u64 {
    let numbers = layers.iter().map(|layer| {
        let within = layer.block.as_ref();
        let within = within.map_or(0, |block| activations(&block.body) + activations(&block.skip));
        layer.output.elements() as u64 + within
    });
    numbers.sum()
}

/// Returns the number of values to which the convolutions among these layers unfold one sample: of all of them, and of
/// the largest.
fn unfolded(layers: &[PlacedLayer]) -> (u64, u64) {
    let of = |placed: &PlacedLayer| {
        if let Some(block) = &placed.block {
            let (body, skip) = (unfolded(&block.body), unfolded(&block.skip));
            return (body.0 + skip.0, body.1.max(skip.1));
        }
        match (&placed.layer, &placed.parameters) {
            // Convolutions with kernels of one pixel read images without unfolding.
            (
                Layer::Conv {
                    kernel: 1,
                    stride: 1,
                    pad: 0,
                    ..
                },
                _,
            ) => (0, 0),
            (Layer::Conv { out, .. }, Some((weight, _))) => {
                let (window, positions) = (weight.len() / out, placed.output.elements() / out);
                let numbers = (window * positions) as u64;
                (numbers, numbers)
            }
            _ => (0, 0),
        }
    };
    let together = |a: (u64, u64), b: (u64, u64)| (a.0 + b.0, a.1.max(b.1));
    layers.iter().map(of).fold((0, 0), together)
}

#[cfg(test)]
mod tests {
    use super::super::Shape;
    use super::*;

    #[test]
    fn convolutions_of_more_than_a_pixel_unfold() {
        let image = Shape::Image {
            channels: 2,
            height: 6,
            width: 6,
        };
        let text = "conv 4 3x3 pad 1, conv 3 1x1, residual [ conv 3 3x3 pad 1 ], dense";
        let layout = Layout::new(&text.parse().unwrap(), image, 3).unwrap();
        let (first, second) = (2 * 9 * 36, 3 * 9 * 36);
        assert_eq!(layout.unfolding_bytes(5, false), 2 * 4 * 5 * (first + second));
        assert_eq!(layout.unfolding_bytes(5, true), 2 * 4 * 5 * second);
        let written = 4 * 36 + 3 * 36 + 2 * 3 * 36 + 3;
        assert_eq!(layout.measuring_bytes(5), 4 * 5 * (written + second));
    }
}
