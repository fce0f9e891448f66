//! Activations: layers that apply a function to each number by itself.

use std::fmt;

/// Activation: a function that a layer applies to each number by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// Rectifier: max(x, 0).
    Relu,
    /// Leaky rectifier: x above 0, and this slope times x below.
    LeakyRelu(f64),
    /// Sigmoid linear unit: x / (1 + e^-x).
    Silu,
    /// Gaussian error linear unit: x Φ(x), computed exactly, which is PyTorch's default.
    Gelu,
    /// Hyperbolic tangent: tanh x.
    Tanh,
    /// Logistic function: 1 / (1 + e^-x).
    Sigmoid,
}

impl Activation {
    /// All activations, in the order in which help texts list them. A slope has PyTorch's default value.
    pub const ALL: [Self; 6] = [
        Self::Relu,
        Self::LeakyRelu(0.01),
        Self::Silu,
        Self::Gelu,
        Self::Tanh,
        Self::Sigmoid,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::LeakyRelu(_) => "leakyrelu",
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
        }
    }

    /// Returns the slope below zero, if the activation has one that can be set.
    #[must_use]
    pub fn slope(self) -> Option<f64> {
        match self {
            Self::LeakyRelu(slope) => Some(slope),
            _ => None,
        }
    }

    /// Returns this activation with another slope below zero. An activation without a slope is returned unchanged.
    pub(super) fn with_slope(self, slope: f64) -> Self {
        match self {
            Self::LeakyRelu(_) => Self::LeakyRelu(slope),
            other => other,
        }
    }

    /// Returns the activation's index in [`Activation::ALL`], by which GPU kernels know it.
    #[must_use]
    pub fn number(self) -> usize {
        match self {
            Self::Relu => 0,
            Self::LeakyRelu(_) => 1,
            Self::Silu => 2,
            Self::Gelu => 3,
            Self::Tanh => 4,
            Self::Sigmoid => 5,
        }
    }

    /// Returns the activation of this name, with its default slope.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|activation| activation.name() == name)
    }
}

/// Writes an activation function as the text of a model has it.
impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slope() {
            Some(slope) if Self::named(self.name()) != Some(*self) => write!(f, "{} {slope}", self.name()),
            _ => f.write_str(self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_stand_where_their_numbers_say() {
        for (number, activation) in Activation::ALL.into_iter().enumerate() {
            assert_eq!(activation.number(), number);
            assert_eq!(Activation::named(activation.name()), Some(activation));
        }
    }
}
