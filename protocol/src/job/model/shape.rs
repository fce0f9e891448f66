//! The shape of one sample before or after a layer of a model.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Shape of one sample before or after a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// Shape of a sample: a vector of this many numbers.
    Flat(usize),
    /// Shape of a sample: an image, stored by channel, then row, then column, as PyTorch does.
    Image {
        channels: usize,
        /// Number of rows of the image.
        height: usize,
        /// Number of columns of the image.
        width: usize,
    },
}

impl Shape {
    /// Returns the number of numbers in one sample; `usize::MAX` if there are more than a `usize` can count.
    #[must_use]
    pub fn elements(&self) -> usize {
        match *self {
            Self::Flat(n) => n,
            Self::Image {
                channels,
                height,
                width,
            } => channels.saturating_mul(height).saturating_mul(width),
        }
    }

    /// Returns the dimensions of one sample, outermost first.
    #[must_use]
    pub fn dims(&self) -> Vec<usize> {
        match *self {
            Self::Flat(features) => vec![features],
            Self::Image {
                channels,
                height,
                width,
            } => vec![channels, height, width],
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flat(n) => write!(f, "{n}"),
            Self::Image {
                channels,
                height,
                width,
            } => write!(f, "{channels}x{height}x{width}"),
        }
    }
}
