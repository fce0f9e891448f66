//! Arithmetic with the same bits on every machine: sums in a fixed order, each step rounded, on any processor. The
//! faster kernels used in training fuse and reorder operations; this is for results that are computed once.

use multiversion::multiversion;

/// Computes `out += lhs · rhs`, where `rhs` has `columns` columns. Every sum runs in the order of its terms; only
/// different sums are computed in parallel, which does not change them.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
pub(super) fn add_product(lhs: &[f32], rhs: &[f32], columns: usize, out: &mut [f32]) {
    let terms = rhs.len() / columns.max(1);
    for (row, out) in lhs.chunks_exact(terms.max(1)).zip(out.chunks_exact_mut(columns.max(1))) {
        for (&factor, terms) in row.iter().zip(rhs.chunks_exact(columns)) {
            for (sum, term) in out.iter_mut().zip(terms) {
                *sum += factor * term;
            }
        }
    }
}

/// Transposes a matrix of this many rows and columns.
pub(super) fn turned(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut turned = vec![0.0; values.len()];
    for (row, values) in values.chunks_exact(columns.max(1)).enumerate() {
        for (column, &value) in values.iter().enumerate() {
            turned[column * rows + row] = value;
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_sums_in_the_order_of_their_terms() {
        let lhs: Vec<f32> = (0..6).map(|n| 0.1 + n as f32).collect();
        let rhs: Vec<f32> = (0..15).map(|n| 1.0 / (n + 3) as f32).collect();
        let mut out = vec![0.0; 10];
        add_product(&lhs, &rhs, 5, &mut out);
        for (at, &found) in out.iter().enumerate() {
            let (row, column) = (at / 5, at % 5);
            let terms = (0..3).map(|term| lhs[row * 3 + term] * rhs[term * 5 + column]);
            assert_eq!(found.to_bits(), terms.fold(0.0f32, |sum, term| sum + term).to_bits());
        }
        assert_eq!(
            turned(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3),
            [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
        );
    }
}
