//! Activations on the CPU: functions of each number by itself.
//!
//! dfdx has these operations too, but tapes them itself, and its derivative of gelu is too large by √2 in the second
//! term (measured against finite differences with dfdx 0.13.0).

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use dfdx::prelude::*;
use protocol::job::model::Activation;

use super::tensor::{from_rows, gradient_of, take_gradient, values};
use super::{OpError, Rows};

/// Fraction of a standard normal distribution below `x`.
fn below(x: f32) -> f32 {
    0.5 * (1.0 + libm::erff(x * FRAC_1_SQRT_2))
}

/// Density of the standard normal distribution at `x`.
fn density(x: f32) -> f32 {
    0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI * (-0.5 * x * x).exp()
}

/// Returns `1 / (1 + e⁻ˣ)`.
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Applies an activation to every number.
pub(super) fn forward(activation: Activation, x: &Rows) -> Result<Rows, OpError> {
    let (samples, features) = *x.shape();
    let input = values(x).iter();
    // One loop per activation, so that none branches for every number.
    let out = match activation {
        Activation::Relu => input.map(|x| x.max(0.0)).collect(),
        Activation::Tanh => input.map(|x| x.tanh()).collect(),
        Activation::Sigmoid => input.map(|x| sigmoid(*x)).collect(),
        Activation::Gelu => input.map(|x| x * below(*x)).collect(),
        Activation::Silu => input.map(|x| x * sigmoid(*x)).collect(),
        Activation::LeakyRelu(slope) => input.map(|&x| if x > 0.0 { x } else { slope as f32 * x }).collect(),
    };
    from_rows(x.device(), samples, features, out)
}

/// Applies an activation with the same bits on every machine: the functions of system libraries differ.
pub(super) fn forward_exactly(activation: Activation, x: &Rows) -> Result<Rows, OpError> {
    let share = |x: f32| 1.0 / (1.0 + libm::expf(-x));
    let input = values(x).iter();
    let out = match activation {
        Activation::Tanh => input.map(|&x| libm::tanhf(x)).collect(),
        Activation::Sigmoid => input.map(|&x| share(x)).collect(),
        Activation::Silu => input.map(|&x| x * share(x)).collect(),
        Activation::Relu | Activation::Gelu | Activation::LeakyRelu(_) => return forward(activation, x),
    };
    let (samples, features) = *x.shape();
    from_rows(x.device(), samples, features, out)
}

/// Backward pass: adds the output's gradient, times the activation's derivative, to the input's gradient.
pub(super) fn backward(
    activation: Activation,
    x: &Rows,
    y: &Rows,
    gradients: &mut Gradients<f32, Cpu>,
) -> Result<(), OpError> {
    let dy = take_gradient(gradients, y)?;
    let dx = gradient_of(gradients, x)?.iter_mut().zip(&dy);
    let (x, y) = (values(x), values(y));
    match activation {
        Activation::Relu => dx
            .zip(x)
            .for_each(|((dx, dy), &x)| *dx += if x > 0.0 { 1.0 } else { 0.0 } * dy),
        Activation::Tanh => dx.zip(y).for_each(|((dx, dy), y)| *dx += (1.0 - y * y) * dy),
        Activation::Sigmoid => dx.zip(y).for_each(|((dx, dy), y)| *dx += y * (1.0 - y) * dy),
        Activation::Silu => dx.zip(x).for_each(|((dx, dy), &x)| {
            let share = sigmoid(x);
            *dx += dy * share * (1.0 + x * (1.0 - share));
        }),
        Activation::LeakyRelu(slope) => dx
            .zip(x)
            .for_each(|((dx, dy), &x)| *dx += if x > 0.0 { 1.0 } else { slope as f32 } * dy),
        Activation::Gelu => dx
            .zip(x)
            .for_each(|((dx, dy), &x)| *dx += dy * (below(x) + x * density(x))),
    }
    Ok(())
}
