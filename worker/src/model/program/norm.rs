//! Numbers shifted to mean 0 and scaled to variance 1, set by set, and then by what is trained.

use std::ops::Range;

/// Which numbers of a minibatch are shifted and scaled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sets {
    /// Those of a channel, in all samples.
    Channels,
    /// Those of a sample.
    Samples,
    /// Those of one of so many groups of channels, in a sample.
    Groups(usize),
}

/// A normalising layer: which numbers belong together, and where what is trained lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Norm {
    /// Which numbers make a set.
    pub sets: Sets,
    /// Planes per sample; of a vector each number is one.
    pub channels: usize,
    /// Numbers in each.
    pub plane: usize,
    /// Whether samples are vectors: those lie as rows on every device.
    pub flat: bool,
    /// What numbers are multiplied by then.
    pub gain: Range<usize>,
    /// And what is added.
    pub bias: Range<usize>,
    /// Where the means and the variances lie that are taken when nothing is trained.
    pub statistics: Option<(Range<usize>, Range<usize>)>,
    /// Whether relu follows.
    pub relu: bool,
}

impl Norm {
    /// What is added to a variance, so that numbers that are all the same are not scaled for ever.
    pub(crate) const EPSILON: f32 = 1e-5;

    /// How many numbers of a sample belong to one set.
    pub(crate) fn members(&self) -> usize {
        match self.sets {
            Sets::Channels => self.plane,
            Sets::Samples => self.channels * self.plane,
            Sets::Groups(groups) => self.channels / groups * self.plane,
        }
    }

    /// How many sets a minibatch has.
    #[cfg(feature = "cuda")]
    pub(crate) fn count(&self, samples: usize) -> usize {
        match self.sets {
            Sets::Channels => self.channels,
            Sets::Samples => samples,
            Sets::Groups(groups) => samples * groups,
        }
    }

    /// How many numbers of a minibatch belong to one set.
    pub(crate) fn set_len(&self, samples: usize) -> usize {
        match self.sets {
            Sets::Channels => samples * self.plane,
            Sets::Samples | Sets::Groups(_) => self.members(),
        }
    }
}
