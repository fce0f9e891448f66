//! Bias and relu after a matrix product, fused into one pass.

use multiversion::multiversion;

use super::matmul::WriteMode;

/// Adds a bias to every row, one number per column; with relu, negative results become zero.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(super) fn add_to_rows(out: &mut [f32], bias: &[f32], relu: bool) {
    for row in out.chunks_exact_mut(bias.len()) {
        if relu {
            for (value, bias) in row.iter_mut().zip(bias) {
                *value = (*value + bias).max(0.0);
            }
        } else {
            for (value, bias) in row.iter_mut().zip(bias) {
                *value += bias;
            }
        }
    }
}

/// Transposes a matrix with one row per output to one row per sample, and adds each output's bias.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(super) fn transpose_and_add(columns: &[f32], samples: usize, bias: &[f32], relu: bool) -> Vec<f32> {
    /// Side of the square tiles in which the matrix is transposed: 16 floats are as long as a cache line, so that
    /// hardly any line is fetched twice.
    const SIDE: usize = 16;
    let outputs = bias.len();
    assert_eq!(columns.len(), samples * outputs);
    let mut rows = vec![0.0; columns.len()];
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    for first_output in (0..outputs).step_by(SIDE) {
        let last_output = (first_output + SIDE).min(outputs);
        for first_sample in (0..samples).step_by(SIDE) {
            let last_sample = (first_sample + SIDE).min(samples);
            for sample in first_sample..last_sample {
                let row = &mut rows[sample * outputs + first_output..sample * outputs + last_output];
                let bias = &bias[first_output..last_output];
                for (at, (value, bias)) in row.iter_mut().zip(bias).enumerate() {
                    *value = (columns[(first_output + at) * samples + sample] + bias).max(floor);
                }
            }
        }
    }
    rows
}

/// Adds a bias to every number of a plane (one channel of one sample); with relu, negative results become zero.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(super) fn add_to_plane(plane: &mut [f32], bias: f32, relu: bool) {
    if relu {
        for value in plane {
            *value = (*value + bias).max(0.0);
        }
    } else {
        for value in plane {
            *value += bias;
        }
    }
}

/// Backward pass of relu: zeroes the gradient where the output was cut.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(super) fn cut_gradient(gradient: &mut [f32], output: &[f32]) {
    for (gradient, &output) in gradient.iter_mut().zip(output) {
        *gradient = if output > 0.0 { *gradient } else { 0.0 };
    }
}

/// Sums up each column of a gradient: the gradient of a bias that was added to every row.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(super) fn sum_rows(gradient: &[f32], sums: &mut [f32], write_mode: WriteMode) {
    if write_mode == WriteMode::Overwrite {
        sums.fill(0.0);
    }
    for row in gradient.chunks_exact(sums.len()) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += value;
        }
    }
}

/// Sums up a plane in 32 parallel partial sums: in a single sum each addition would wait for the one before.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(super) fn sum_plane(plane: &[f32]) -> f32 {
    let mut sums = [0f32; 32];
    let (chunks, rest) = plane.as_chunks::<32>();
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, value)| *sum += value);
    }
    sums.iter().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_changes_nothing_but_the_order() {
        for (samples, outputs) in [(1, 1), (16, 32), (19, 37), (5, 100)] {
            let columns: Vec<f32> = (0..samples * outputs).map(|i| (i * 31 % 17) as f32 - 8.0).collect();
            let bias: Vec<f32> = (0..outputs).map(|i| i as f32 / 10.0).collect();
            for relu in [false, true] {
                let mut expected: Vec<f32> = (0..samples * outputs)
                    .map(|at| columns[at % outputs * samples + at / outputs])
                    .collect();
                add_to_rows(&mut expected, &bias, relu);
                assert_eq!(transpose_and_add(&columns, samples, &bias, relu), expected);
            }
        }
    }

    #[test]
    fn sums_of_any_length() {
        for len in [0, 1, 31, 32, 33, 100] {
            let plane: Vec<f32> = (0..len).map(|i| i as f32).collect();
            assert_eq!(sum_plane(&plane), plane.iter().sum::<f32>());
        }
    }
}
