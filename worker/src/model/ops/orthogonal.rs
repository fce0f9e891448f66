//! Makes matrices orthogonal for Muon: Newton–Schulz iterations on the smaller of the two Gram matrices.
//!
//! An iteration multiplies a matrix X by a polynomial of its Gram matrix G = X Xᵀ, which moves all singular values
//! towards one and keeps the singular vectors. All these polynomials are polynomials of the first G and commute. So the
//! iterations work on the small square matrix G alone and accumulate their product Q; X is read only twice, for G and
//! for Q X, however many iterations there are.

use multiversion::multiversion;

use super::matmul::{Matrix, WriteMode, multiply};
use crate::machine::parallel::Threads;

/// Coefficients `a, b, c` of Muon's polynomial `a I + b G + c G²`. It raises small singular values fast, by 3.4 in
/// every iteration, and keeps those near one between 0.7 and 1.2: close enough, since an update's exact length matters
/// little.
pub(crate) const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];
/// Added to a matrix's norm before a division by it, so that a matrix of zeros stays zero.
pub(crate) const EPSILON: f32 = 1e-14;

/// Memory for intermediate results of making matrices orthogonal, so that no step allocates.
#[derive(Debug, Default)]
pub struct Scratch {
    gram: Vec<f32>,
    square: Vec<f32>,
    polynomial: Vec<f32>,
    collected: Vec<f32>,
    product: Vec<f32>,
    out: Vec<f32>,
}

/// Replaces a row-major matrix by an orthogonal one with the same singular vectors, multiplied by `scale`.
pub fn orthogonalise(
    values: &mut [f32],
    (rows, columns): (usize, usize),
    iterations: u32,
    scale: f32,
    scratch: &mut Scratch,
    threads: Threads,
) {
    let wide = rows <= columns;
    let size = rows.min(columns);
    let Scratch {
        gram,
        square,
        polynomial,
        collected,
        product,
        out,
    } = scratch;
    for matrix in [&mut *gram, square, polynomial, collected, product] {
        matrix.resize(size * size, 0.0);
    }
    out.resize(values.len(), 0.0);
    let x = Matrix::row_major(values, rows, columns);
    if wide {
        multiply(x, x.transposed(), gram, WriteMode::Overwrite, threads);
    } else {
        multiply(x.transposed(), x, gram, WriteMode::Overwrite, threads);
    }
    // The square root of the Gram matrix's norm is an upper bound of the singular values.
    let norm = gram.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt() as f32 + EPSILON;
    for g in gram.iter_mut() {
        *g /= norm;
    }
    for iteration in 1..=iterations {
        multiply(
            square_of(gram, size),
            square_of(gram, size),
            square,
            WriteMode::Overwrite,
            threads,
        );
        combine(size, gram, square, polynomial);
        if iteration == 1 {
            collected.copy_from_slice(polynomial);
        } else {
            multiply(
                square_of(polynomial, size),
                square_of(collected, size),
                product,
                WriteMode::Overwrite,
                threads,
            );
            std::mem::swap(collected, product);
        }
        if iteration < iterations {
            multiply(
                square_of(polynomial, size),
                square_of(gram, size),
                product,
                WriteMode::Overwrite,
                threads,
            );
            multiply(
                square_of(product, size),
                square_of(polynomial, size),
                gram,
                WriteMode::Overwrite,
                threads,
            );
        }
    }
    let factor = scale / norm.sqrt();
    for q in collected.iter_mut() {
        *q *= factor;
    }
    let x = Matrix::row_major(values, rows, columns);
    if wide {
        multiply(square_of(collected, size), x, out, WriteMode::Overwrite, threads);
    } else {
        multiply(x, square_of(collected, size), out, WriteMode::Overwrite, threads);
    }
    values.copy_from_slice(out);
}

fn square_of(values: &[f32], size: usize) -> Matrix<'_> {
    Matrix::row_major(values, size, size)
}

/// Evaluates Muon's polynomial of a Gram matrix: `polynomial = a I + b gram + c square`.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn combine(size: usize, gram: &[f32], square: &[f32], polynomial: &mut [f32]) {
    let [a, b, c] = COEFFICIENTS;
    for ((p, g), s) in polynomial.iter_mut().zip(gram).zip(square) {
        *p = b * g + c * s;
    }
    for p in polynomial.iter_mut().step_by(size + 1) {
        *p += a;
    }
}

#[cfg(test)]
mod tests {
    use protocol::rng::CounterRng;

    use super::*;

    fn random(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
        let mut random = CounterRng::new(seed, 0);
        let mut number = || random.below(2_000_001) as f32 / 1e6 - 1.0;
        (0..rows * columns).map(|_| number()).collect()
    }

    fn orthogonal(values: &[f32], rows: usize, columns: usize, scale: f32) -> Vec<f32> {
        let mut values = values.to_vec();
        orthogonalise(
            &mut values,
            (rows, columns),
            5,
            scale,
            &mut Scratch::default(),
            Threads(1),
        );
        values
    }

    /// Returns the Gram matrix of a matrix's smaller side (the products of all its rows or of all its columns).
    fn gram(values: &[f32], rows: usize, columns: usize) -> Vec<f64> {
        let at = |row: usize, column: usize| f64::from(values[row * columns + column]);
        let size = rows.min(columns);
        let entry = |i: usize, j: usize| -> f64 {
            if rows <= columns {
                (0..columns).map(|k| at(i, k) * at(j, k)).sum()
            } else {
                (0..rows).map(|k| at(k, i) * at(k, j)).sum()
            }
        };
        (0..size * size)
            .map(|index| entry(index / size, index % size))
            .collect()
    }

    #[test]
    fn rows_or_columns_become_orthogonal_and_about_one_long() {
        for (rows, columns) in [(8, 30), (30, 8), (16, 16), (1, 5), (5, 1), (64, 100)] {
            let found = orthogonal(&random(rows, columns, 3), rows, columns, 1.0);
            let size = rows.min(columns);
            // The smallest singular values of a square matrix are too small to come near one.
            let lengths = if rows == columns { 0.0..1.6 } else { 0.4..1.6 };
            for (index, entry) in gram(&found, rows, columns).into_iter().enumerate() {
                if index % (size + 1) == 0 {
                    assert!(lengths.contains(&entry), "{rows} by {columns}: {entry}");
                } else {
                    assert!(entry.abs() < 0.5, "{rows} by {columns}: {entry}");
                }
            }
        }
    }

    /// Reference implementation for tests: Muon's iteration in double precision on the whole matrix.
    fn plainly(values: &[f32], rows: usize, columns: usize) -> Vec<f64> {
        let mut x: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
        let product = |a: &[f64], b: &[f64], (rows, inner, columns): (usize, usize, usize)| -> Vec<f64> {
            let entry = |i: usize, j: usize| (0..inner).map(|k| a[i * inner + k] * b[k * columns + j]).sum();
            (0..rows * columns)
                .map(|at| entry(at / columns, at % columns))
                .collect()
        };
        let transposed = |a: &[f64]| -> Vec<f64> {
            (0..rows * columns)
                .map(|at| a[at % rows * columns + at / rows])
                .collect()
        };
        let gram = product(&x, &transposed(&x), (rows, columns, rows));
        let norm = gram.iter().map(|g| g * g).sum::<f64>().sqrt().sqrt();
        for value in &mut x {
            *value /= norm;
        }
        let [a, b, c] = COEFFICIENTS.map(f64::from);
        for _ in 0..5 {
            let gram = product(&x, &transposed(&x), (rows, columns, rows));
            let square = product(&gram, &gram, (rows, rows, rows));
            let both: Vec<f64> = gram.iter().zip(&square).map(|(g, s)| b * g + c * s).collect();
            let rest = product(&both, &x, (rows, rows, columns));
            x = x.iter().zip(rest).map(|(x, rest)| a * x + rest).collect();
        }
        x
    }

    #[test]
    fn the_gram_matrix_tells_as_much_as_the_whole_one() {
        let (rows, columns) = (24, 60);
        let values = random(rows, columns, 9);
        let found = orthogonal(&values, rows, columns, 2.0);
        for (found, expected) in found.iter().zip(plainly(&values, rows, columns)) {
            assert!((f64::from(*found) - 2.0 * expected).abs() < 1e-3, "{found} {expected}");
        }
    }

    #[test]
    fn nothing_stays_nothing() {
        assert_eq!(orthogonal(&[0.0; 12], 3, 4, 1.0), [0.0; 12]);
    }

    #[test]
    fn the_size_of_a_matrix_does_not_matter_but_numbers_must_be_numbers() {
        let values = random(6, 9, 1);
        let expected = orthogonal(&values, 6, 9, 1.0);
        for factor in [1e-6, 1e6] {
            let scaled: Vec<f32> = values.iter().map(|value| value * factor).collect();
            for (found, expected) in orthogonal(&scaled, 6, 9, 1.0).iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-3, "{factor}: {found} {expected}");
            }
        }
        let mut wrong = values;
        wrong[7] = f32::NAN;
        assert!(orthogonal(&wrong, 6, 9, 1.0).iter().any(|value| !value.is_finite()));
    }
}
