//! Dropout on the CPU: in training each number is dropped with a probability, and the others are scaled up.

use dfdx::prelude::*;
use multiversion::multiversion;
use protocol::rng::splitmix64;

use super::tensor::{gradient_of, take_gradient};
use super::{OpError, Rows, from_rows, values};
use crate::model::program::Dropout;

const BITS: u32 = Dropout::BITS;
/// Number of dropout decisions that one random word serves.
const PER_WORD: usize = (u64::BITS / BITS) as usize;

/// Drops each number with a probability, and returns each number's factor (0 if dropped). The decisions are a pure
/// function of the step's key, which the caller never reuses.
pub(super) fn forward(op: Dropout, step_key: u64, x: &Rows) -> Result<(Rows, Vec<f32>), OpError> {
    let (samples, features) = *x.shape();
    let input = values(x);
    let mut factors = vec![0.0; input.len()];
    draw_factors(&mut factors, op, op.key(step_key));
    let mut out = Vec::with_capacity(input.len());
    out.extend(input.iter().zip(&factors).map(|(value, factor)| value * factor));
    Ok((from_rows(x.device(), samples, features, out)?, factors))
}

/// Runs the backward pass of dropout: adds the output's gradient, times each number's factor, to the input's.
pub(super) fn backward(
    factors: &[f32],
    x: &Rows,
    y: &Rows,
    gradients: &mut Gradients<f32, Cpu>,
) -> Result<(), OpError> {
    let dy = take_gradient(gradients, y)?;
    let dx = gradient_of(gradients, x)?;
    for ((dx, dy), factor) in dx.iter_mut().zip(&dy).zip(factors) {
        *dx += dy * factor;
    }
    Ok(())
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn draw_factors(factors: &mut [f32], op: Dropout, key: u64) {
    let (border, kept) = (u64::from(op.border()), op.kept());
    let (fours, rest) = factors.as_chunks_mut::<PER_WORD>();
    let decide = |word: u64, within: usize| {
        let drawn = word >> (BITS as usize * within) & ((1 << BITS) - 1);
        if drawn < border { 0.0 } else { kept }
    };
    for (position, four) in (0u64..).zip(fours.iter_mut()) {
        let word = splitmix64(key ^ splitmix64(position));
        for (within, factor) in four.iter_mut().enumerate() {
            *factor = decide(word, within);
        }
    }
    let word = splitmix64(!key);
    for (within, factor) in rest.iter_mut().enumerate() {
        *factor = decide(word, within);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(probability: f64, slice: u64) -> Dropout {
        Dropout {
            probability,
            place: 0,
            slice,
        }
    }

    #[test]
    fn the_right_share_is_dropped_and_the_mean_stays() {
        let device = Cpu::default();
        for probability in [0.0, 0.25, 0.5, 0.9] {
            let x = from_rows(&device, 10, 5003, vec![1.0; 50_030]).unwrap();
            let (y, _) = forward(of(probability, 0), 7, &x).unwrap();
            let kept = values(&y).iter().filter(|&&v| v != 0.0).count() as f64 / 50_030.0;
            assert!(
                (kept - (1.0 - probability)).abs() < 0.01,
                "a fraction of {kept} is kept at dropout {probability}"
            );
            let mean = values(&y).iter().map(|&v| f64::from(v)).sum::<f64>() / 50_030.0;
            assert!((mean - 1.0).abs() < 0.05);
        }
    }

    #[test]
    fn keys_decide() {
        let device = Cpu::default();
        let drop = |key, slice| {
            let x = from_rows(&device, 1, 100, vec![1.0; 100]).unwrap();
            values(&forward(of(0.5, slice), key, &x).unwrap().0).to_vec()
        };
        assert_eq!(drop(1, 0), drop(1, 0));
        assert_ne!(drop(1, 0), drop(2, 0));
        assert_ne!(drop(1, 0), drop(1, 1), "each slice must have its own dropout mask");
    }
}
