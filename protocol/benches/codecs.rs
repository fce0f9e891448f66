//! Benchmarks of encoding and applying changes, and of the distance of their encoded size from the entropy bound.
//!
//! Prints rates in millions of changes per second beside the rate of a plain copy of the same changes in the same run.

use std::hint::black_box;
use std::time::{Duration, Instant};

use protocol::rng::CounterRng;
use protocol::weights::changes::{apply_to_counts, apply_to_weights, change};
use protocol::weights::digest::Digest;
use protocol::weights::encoding::{Encoding, decode, encode};
use protocol::weights::lattice::Tau;

const WEIGHTS: usize = 10_000_000;

/// Makes the weight changes of one batch: each weight changes with probability `density`, up or down by chance, much
/// like in training.
fn changes(density: f64, seed: u64) -> Vec<u32> {
    let random = CounterRng::new(seed, 0);
    let border = (density * 2f64.powi(63)) as u64;
    (0..WEIGHTS as u32)
        .map(|index| (index, random.at(u64::from(index))))
        .filter(|&(_, draw)| draw >> 1 < border)
        .map(|(index, draw)| change(index, draw & 1 == 1))
        .collect()
}

/// Returns the seconds that the fastest of many repetitions of `work` takes: what the machine can do when nothing else
/// disturbs it.
fn fastest(mut work: impl FnMut()) -> f64 {
    let deadline = Instant::now() + Duration::from_millis(400);
    let mut best = f64::INFINITY;
    while Instant::now() < deadline {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn entropy_bits(density: f64) -> f64 {
    let rest = 1.0 - density;
    // One bit of sign for every change, and the entropy of which weights change.
    1.0 - (density * density.log2() + rest * rest.log2()) / density
}

fn main() {
    println!("Rice code, {WEIGHTS} weights; rates in millions of changes per second");
    println!("  density   changes  encode  decode    copy  bits/change  entropy  size/bound");
    for density in [1e-4, 1e-3, 2e-3, 1e-2, 1.0 / 16.0] {
        let changes = changes(density, 1);
        let mut payload = Vec::new();
        let encoding = fastest(|| {
            payload.clear();
            encode(Encoding::Rice, black_box(&changes), &mut payload);
        });
        let mut decoded = Vec::new();
        let decoding = fastest(|| {
            decode(
                Encoding::Rice,
                black_box(&payload),
                changes.len(),
                WEIGHTS,
                Tau::ONE_STEP,
                &mut decoded,
            )
            .expect("what was encoded decodes");
        });
        assert_eq!(decoded, changes);
        let copying = fastest(|| {
            decoded.clear();
            decoded.extend_from_slice(black_box(&changes));
        });
        let rate = |seconds: f64| changes.len() as f64 / seconds / 1e6;
        let bits = payload.len() as f64 * 8.0 / changes.len() as f64;
        let entropy = entropy_bits(density);
        println!(
            "  {density:<8.1e} {:>8}  {:>6.0}  {:>6.0}  {:>6.0}  {bits:>11.3}  {entropy:>7.3}  {:>10.4}",
            changes.len(),
            rate(encoding),
            rate(decoding),
            rate(copying),
            bits / entropy,
        );
    }

    println!("applying decoded changes to a replica, millions of changes per second");
    println!("  density   to weights  to counts  digest");
    let mut weights = vec![0f32; WEIGHTS];
    let mut counts = vec![0i32; WEIGHTS];
    for density in [1e-3, 2e-3, 1e-2] {
        let changes = changes(density, 2);
        // Back and forth, so that no weight ever leaves the range.
        let back: Vec<u32> = changes.iter().map(|change| change ^ 1).collect();
        let tau = Tau::ONE_STEP;
        let floats = fastest(|| {
            apply_to_weights(black_box(&changes), tau, &mut weights).expect("in range");
            apply_to_weights(black_box(&back), tau, &mut weights).expect("in range");
        });
        let integers = fastest(|| {
            apply_to_counts(black_box(&changes), tau, &mut counts).expect("in range");
            apply_to_counts(black_box(&back), tau, &mut counts).expect("in range");
        });
        let digests = fastest(|| {
            black_box(Digest::of_changes(black_box(&changes), tau));
        });
        let rate = |changes: usize, seconds: f64| changes as f64 / seconds / 1e6;
        println!(
            "  {density:<8.1e} {:>10.0}  {:>9.0}  {:>6.0}",
            rate(2 * changes.len(), floats),
            rate(2 * changes.len(), integers),
            rate(changes.len(), digests),
        );
    }
}
