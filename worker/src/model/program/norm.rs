//! Normalising layers: sets of numbers are shifted to mean 0 and scaled to variance 1, then multiplied and shifted by
//! trained weights.

use std::ops::Range;

/// Choice of the sets of a minibatch's numbers that are normalised together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sets {
    /// Batch norm: the numbers of each channel are normalised together, across all samples.
    Channels,
    /// Layer norm: all numbers of a sample are normalised together.
    Samples,
    /// Group norm: each sample's channels are divided into this many groups, and the numbers of a group are normalised
    /// together.
    Groups(usize),
}

/// A normalising layer: its sets, and the indices of its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Norm {
    /// Choice of the sets of numbers that the layer normalises together.
    pub sets: Sets,
    /// Number of planes (channels) per sample; for vectors, numbers per sample.
    pub channels: usize,
    /// Number of values in a plane (one channel of one sample).
    pub plane: usize,
    /// True if samples are vectors, which every device stores as rows; false for images.
    pub flat: bool,
    /// Indices of the gains among all weights; normalised numbers are multiplied by them.
    pub gain: Range<usize>,
    /// Indices of the biases among all weights, which are added after the gains are applied.
    pub bias: Range<usize>,
    /// Indices of the means and variances that evaluations use; only batch norms have them.
    pub statistics: Option<(Range<usize>, Range<usize>)>,
    /// True if relu is applied to the normalised numbers.
    pub relu: bool,
}

impl Norm {
    /// Added to each variance, so that equal numbers do not lead to a division by zero.
    pub(crate) const EPSILON: f32 = 1e-5;

    /// Returns the number of values of one sample that are normalised together as part of one set.
    pub(crate) fn members(&self) -> usize {
        match self.sets {
            Sets::Channels => self.plane,
            Sets::Samples => self.channels * self.plane,
            Sets::Groups(groups) => self.channels / groups * self.plane,
        }
    }

    /// Returns the number of sets of numbers that the layer normalises separately in a minibatch.
    #[cfg(feature = "cuda")]
    pub(crate) fn count(&self, samples: usize) -> usize {
        match self.sets {
            Sets::Channels => self.channels,
            Sets::Samples => samples,
            Sets::Groups(groups) => samples * groups,
        }
    }

    /// Returns the number of values in a minibatch of this many samples that are normalised together as one set.
    pub(crate) fn set_len(&self, samples: usize) -> usize {
        match self.sets {
            Sets::Channels => samples * self.plane,
            Sets::Samples | Sets::Groups(_) => self.members(),
        }
    }
}
