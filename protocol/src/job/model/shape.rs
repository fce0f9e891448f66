//! The shape of one sample on its way through a model.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What one sample looks like before or after a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// A vector of so many numbers.
    Flat(usize),
    /// An image: channels, then rows, then columns, as PyTorch stores it.
    Image {
        /// Number of planes.
        channels: usize,
        /// Rows of a plane.
        height: usize,
        /// Columns of a plane.
        width: usize,
    },
}

impl Shape {
    /// How many numbers one sample holds; more than can be counted count as the most that can.
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

    /// Its dimensions, outermost first.
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
