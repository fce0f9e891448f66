//! Normalising layers: sets of numbers are shifted to mean 0 and scaled to variance 1, then multiplied and shifted by
//! trained weights.

use std::ops::Range;

/// Sets of numbers in a minibatch that are normalised together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sets {
    /// One set per channel, across all samples.
    Channels,
    /// One set per sample.
    Samples,
    /// One set per sample and group of channels, with this many groups.
    Groups(usize),
}

/// A normalising layer: its sets, and the indices of its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Norm {
    /// Sets of numbers that are normalised together.
    pub sets: Sets,
    /// Planes per sample; for vectors, numbers per sample.
    pub channels: usize,
    /// Numbers in a plane.
    pub plane: usize,
    /// True if samples are vectors, which are rows on every device.
    pub flat: bool,
    /// Indices of the gains, which multiply normalised numbers.
    pub gain: Range<usize>,
    /// Indices of the biases, which are added afterwards.
    pub bias: Range<usize>,
    /// Indices of the means and variances used outside of training; only batch norms have them.
    pub statistics: Option<(Range<usize>, Range<usize>)>,
    /// True if relu follows.
    pub relu: bool,
}

impl Norm {
    /// Added to each variance, so that equal numbers do not lead to a division by zero.
    pub(crate) const EPSILON: f32 = 1e-5;

    /// Numbers of one sample in a set.
    pub(crate) fn members(&self) -> usize {
        match self.sets {
            Sets::Channels => self.plane,
            Sets::Samples => self.channels * self.plane,
            Sets::Groups(groups) => self.channels / groups * self.plane,
        }
    }

    /// Number of sets in a minibatch.
    #[cfg(feature = "cuda")]
    pub(crate) fn count(&self, samples: usize) -> usize {
        match self.sets {
            Sets::Channels => self.channels,
            Sets::Samples => samples,
            Sets::Groups(groups) => samples * groups,
        }
    }

    /// Numbers of a minibatch in a set.
    pub(crate) fn set_len(&self, samples: usize) -> usize {
        match self.sets {
            Sets::Channels => samples * self.plane,
            Sets::Samples | Sets::Groups(_) => self.members(),
        }
    }
}
