//! Measures the quantiser's speed against the memory's: bytes per second divided by those of a plain copy, measured
//! alternately in one run.

use std::hint::black_box;
use std::time::Instant;

use protocol::rng::CounterRng;
use protocol::weights::lattice::Tau;
use worker::trainer::quantise::{Reached, quantise};

const WEIGHTS: usize = 10_000_000;
const ROUNDS: usize = 40;
/// Bytes per weight that the quantiser reads: an own and a shared weight.
const QUANTISER_BYTES: usize = 8;
/// Bytes per weight that a plain copy reads and writes; the quantiser's speed is compared with that of a copy.
const COPY_BYTES: usize = 8;

/// Returns own weights of which the fraction `density` is τ = 1 away from shared ones of 0, in random places and
/// directions.
fn own_weights(density: f64) -> Vec<f32> {
    let random = CounterRng::new(3, 0);
    (0..WEIGHTS as u64)
        .map(|index| {
            let draw = random.at(index);
            let sign = if draw & 1 == 1 { 1.0 } else { -1.0 };
            let due = ((draw >> 11) as f64) < density * (1u64 << 53) as f64;
            if due { sign } else { sign * 1e-9 }
        })
        .collect()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn main() {
    println!("quantiser, {WEIGHTS} weights, one thread; medians of {ROUNDS} alternating rounds");
    println!("  density   changes  quantiser GB/s  memcpy GB/s  ratio");
    for density in [0.0, 1e-3, 1e-2] {
        let own = own_weights(density);
        let shared = vec![0.0f32; WEIGHTS];
        let mut copy = vec![1.0f32; WEIGHTS];
        let mut changes = Vec::with_capacity(WEIGHTS / 10);
        let (mut quantiser, mut memcpy) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            changes.clear();
            quantiser.push(timed(|| {
                let result = quantise(
                    Reached::exactly(black_box(&own)),
                    &shared,
                    Tau::nearest(1.0),
                    0,
                    usize::MAX,
                    &mut changes,
                );
                assert!(result.is_ok());
            }));
            memcpy.push(timed(|| copy.copy_from_slice(black_box(&own))));
            black_box(&copy);
        }
        let rate = |seconds: Vec<f64>, bytes: usize| (bytes * WEIGHTS) as f64 / median(seconds) / 1e9;
        let (quantiser, memcpy) = (rate(quantiser, QUANTISER_BYTES), rate(memcpy, COPY_BYTES));
        println!(
            "  {density:<8.1e} {:>8}  {quantiser:>14.2}  {memcpy:>11.2}  {:>5.2}",
            changes.len(),
            quantiser / memcpy
        );
    }
}
