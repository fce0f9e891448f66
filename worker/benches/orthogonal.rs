//! Measures the cost of an orthogonal update: its time divided by that of a gradient of 64 samples for the same matrix,
//! whose three products are most of a forward and backward pass. Both are measured alternately in one run.

use std::hint::black_box;
use std::time::Instant;

use protocol::rng::CounterRng;
use worker::machine::parallel::Threads;
use worker::model::ops::matmul::{Matrix, WriteMode, multiply};
use worker::model::ops::orthogonal::{Scratch, orthogonalise};

const ROUNDS: usize = 15;
const SAMPLES: usize = 64;
const ITERATIONS: u32 = 5;

fn random(length: usize, stream: u64) -> Vec<f32> {
    let random = CounterRng::new(5, stream);
    (0..length as u64)
        .map(|index| (random.at(index) >> 40) as f32 / (1u64 << 24) as f32 - 0.5)
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

/// Computes the matrix products of the forward and backward pass of a dense layer with `rows` outputs and `columns`
/// inputs: `y = x wᵀ`, `dw = dyᵀ x`, `dx = dy w`. In place of `dy` stands `y`.
fn gradient(w: &[f32], (rows, columns): (usize, usize), x: &[f32], out: &mut [Vec<f32>; 3]) {
    let [y, dw, dx] = out;
    let w = Matrix::row_major(w, rows, columns);
    let x = Matrix::row_major(x, SAMPLES, columns);
    multiply(x, w.transposed(), y, WriteMode::Overwrite, Threads(1));
    let dy = Matrix::row_major(y, SAMPLES, rows);
    multiply(dy.transposed(), x, dw, WriteMode::Overwrite, Threads(1));
    multiply(dy, w, dx, WriteMode::Overwrite, Threads(1));
}

fn main() {
    println!(
        "orthogonalisation ({ITERATIONS} iterations) against a gradient of {SAMPLES} samples; one thread, medians of \
         {ROUNDS} rounds"
    );
    println!("  matrix      block  orthogonal ms  gradient ms  ratio");
    for (rows, columns) in [(512, 784), (1024, 784), (1024, 1024)] {
        let w = random(rows * columns, 1);
        let x = random(SAMPLES * columns, 2);
        let mut out = [rows * SAMPLES, rows * columns, SAMPLES * columns].map(|length| vec![0.0; length]);
        for block in [32, 64, 128] {
            let mut scratch = Scratch::default();
            let (mut orthogonal, mut plain) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let mut values = w.clone();
                orthogonal.push(timed(|| {
                    for part in values.chunks_mut(block * columns) {
                        let shape = (part.len() / columns, columns);
                        orthogonalise(part, shape, ITERATIONS, 1.0, &mut scratch, Threads(1));
                    }
                }));
                black_box(&values);
                plain.push(timed(|| gradient(black_box(&w), (rows, columns), &x, &mut out)));
                black_box(&out);
            }
            let (orthogonal, plain) = (1e3 * median(orthogonal), 1e3 * median(plain));
            println!(
                "  {:<10} {block:>6}  {orthogonal:>13.2}  {plain:>11.2}  {:>5.2}",
                format!("{rows}x{columns}"),
                orthogonal / plain
            );
        }
    }
}
