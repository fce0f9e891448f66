//! Residuals: the differences between a worker's own and the shared weights, and estimates of their size.

use crate::learning::clip::sum_of_squares;

/// Number of weights whose residuals (own minus shared copy) are sampled to estimate the sizes of all residuals: enough
/// to find the size that one in 1000 reaches.
const SAMPLE: usize = 1 << 17;

/// Returns the distance `n` between sampled weights: the residual (own minus shared copy) of every `n`-th weight is
/// examined.
pub(super) fn sample_step(weights: usize) -> usize {
    weights.div_ceil(SAMPLE).max(1)
}

/// Estimates the norm of the residual (own minus shared copy) of `weights` weights from a sample of it.
pub(super) fn norm(sample: &[f32], weights: usize) -> f64 {
    (sum_of_squares(sample) * weights as f64 / sample.len().max(1) as f64).sqrt()
}

/// Estimates, from a sample, the magnitude that this fraction of all weights' residuals (own minus shared) reaches or
/// exceeds.
pub(super) fn quantile(mut sample: Vec<f32>, fraction: f64) -> f64 {
    if sample.is_empty() {
        return 0.0;
    }
    for residual in &mut sample {
        *residual = residual.abs();
    }
    let above = ((fraction * sample.len() as f64).ceil() as usize).clamp(1, sample.len());
    let at = sample.len() - above;
    f64::from(*sample.select_nth_unstable_by(at, f32::total_cmp).1)
}

/// Returns each weight's residual, rounded to `f32`, and its rounding remainder.
///
/// Far from the shared copy, the difference of two weights does not fit into one float. With the remainder, a restored
/// worker continues exactly like the saved one.
pub(super) fn taken_apart(own: &[f32], shared: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let both = own.iter().zip(shared);
    both.map(|(&own, &shared)| difference(own, shared)).unzip()
}

/// Writes the own weights to `own`: the shared weights plus the residual and its rounding remainder (`rest`), which
/// [`taken_apart`] has returned.
pub(super) fn put_together(residual: &[f32], rest: &[f32], shared: &[f32], own: &mut [f32]) {
    for ((own, &shared), (&residual, &rest)) in own.iter_mut().zip(shared).zip(residual.iter().zip(rest)) {
        // The sum of the three is exact in `f64`, and is rounded once.
        *own = (f64::from(shared) + f64::from(residual) + f64::from(rest)) as f32;
    }
}

/// Returns `a - b` and its rounding error (Knuth's TwoSum).
fn difference(a: f32, b: f32) -> (f32, f32) {
    let difference = a - b;
    let taken = difference - a;
    (difference, (a - (difference - taken)) + (-b - taken))
}

#[cfg(test)]
mod tests {
    use protocol::weights::lattice::Tau;

    use super::*;

    #[test]
    fn a_residual_comes_back_to_the_bit_and_moves_with_the_shared_weights() {
        let step = Tau::ONE_STEP.value();
        let shared = [0.0, 1.0, 1.0, -15.999, step, -3.0 * step, 0.5, 7.25];
        let own = [1e-30, 1e-9, -0.333, 0.1, 0.7 * step, 1e-12, 0.500_001, 7.25];
        let shared = shared.map(|weight| (weight / step).round() * step);
        let (residual, rest) = taken_apart(&own, &shared);
        let restored = |shared: &[f32]| {
            let mut own = vec![9.0; own.len()];
            put_together(&residual, &rest, shared, &mut own);
            own
        };
        assert_eq!(restored(&shared), own);
        assert_ne!(
            rest, [0.0; 8],
            "the test needs a difference that does not fit into one float"
        );
        let moved = restored(&shared.map(|weight| weight + 100.0 * step));
        for (moved, own) in moved.iter().zip(own) {
            assert!((moved - own - 100.0 * step).abs() < step / 8.0, "{own} became {moved}");
        }
    }
}
