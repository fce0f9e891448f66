//! Gradient clipping by the norm, which keeps stale updates from making a run diverge.

use multiversion::multiversion;

use crate::trainer::quantise::NotFinite;

/// Number of partial sums that add up squares side by side, so that the loop runs at the width of the widest vector
/// registers.
const PIPELINES: usize = 64;
/// Number of squares that a partial sum adds up in `f32` before it is added to an `f64`: with more, small squares could
/// be lost.
const ROWS: usize = 64;

#[must_use]
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub fn sum_of_squares(values: &[f32]) -> f64 {
    let mut total = 0.0;
    for block in values.chunks(PIPELINES * ROWS) {
        let mut sums = [0f32; PIPELINES];
        let (rows, rest) = block.as_chunks::<PIPELINES>();
        for row in rows {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value * value;
            }
        }
        total += sums
            .iter()
            .chain([&rest.iter().map(|v| v * v).sum::<f32>()])
            .map(|&s| f64::from(s))
            .sum::<f64>();
    }
    total
}

/// Returns the factor by which a gradient must be scaled so that its norm is at most `max`; 1 without a limit. An
/// infinite or undefined norm is an error.
pub(crate) fn clip_by(gradient: &[f32], max: Option<f64>) -> Result<f32, NotFinite> {
    let Some(max) = max else {
        return Ok(1.0);
    };
    let norm = sum_of_squares(gradient).sqrt();
    match norm.is_finite() {
        false => Err(NotFinite),
        true if norm > max => Ok((max / norm) as f32),
        true => Ok(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_sum_up_on_any_length() {
        for len in [0, 1, 63, 64, 65, 4096, 4097, 10_000] {
            let values: Vec<f32> = (0..len).map(|i| (i % 7) as f32).collect();
            let expected: f64 = values.iter().map(|&v| f64::from(v * v)).sum();
            assert_eq!(sum_of_squares(&values), expected, "{len}");
        }
    }

    #[test]
    fn only_long_gradients_are_clipped() {
        assert_eq!(clip_by(&[0.3, 0.4], Some(1.0)), Ok(1.0));
        assert_eq!(clip_by(&[0.0, -4.0], Some(1.0)), Ok(0.25));
        assert_eq!(clip_by(&[4.0], None), Ok(1.0));
        assert_eq!(clip_by(&[f32::NAN], Some(1.0)), Err(NotFinite));
        assert_eq!(clip_by(&[f32::INFINITY], Some(1.0)), Err(NotFinite));
    }
}
