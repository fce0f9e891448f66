//! Measures the means and variances that batch norms use outside of training, on some training samples.
//!
//! They are measured at given weights, not maintained during training: so nodes exchange nothing for them, and no
//! running average lags behind. After a run, every node measures them on the same samples and at the same weights, with
//! arithmetic that is the same to the bit on every machine: so all nodes save the same file.

use std::sync::{Arc, Mutex, PoisonError};

use dfdx::prelude::Cpu;
use protocol::job::model::Layout;

use crate::dataset::{Answers, Samples};
use crate::machine::parallel::Threads;
use crate::model::ops::{OpError, Parameters, Pass, Statistics, exact_network, from_rows, network};
use crate::model::program::{ImageOrder, Op, Program};

/// Multiply-adds to spend on measuring batch-norm statistics; `SAMPLES_MIN` and `SAMPLES_MAX` bound the number of
/// samples.
const PRODUCTS: u64 = 20_000_000_000;
const SAMPLES_MIN: u64 = 256;
const SAMPLES_MAX: u64 = 4096;
/// Most samples on which a module's running statistics are measured, because what a module computes is unknown.
const MODULE_SAMPLES: usize = 1024;

/// Choice between speed and reproducibility in measuring batch-norm statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// Measures batch-norm statistics as fast as possible; results may differ between machines.
    Any,
    /// Measures batch-norm statistics more slowly, with the same bits on every machine.
    Fixed,
}

/// Measures the means and variances of a model's batch norms at given weights; empty if the model has no batch norm.
pub fn measure(
    layout: &Layout,
    weights: &[f32],
    train: &Samples,
    threads: Threads,
    bits: Bits,
) -> Result<Vec<f32>, OpError> {
    let statistics = layout.measured();
    if statistics == 0 || train.is_empty() {
        return Ok(vec![0.0; statistics]);
    }
    let program = Program::new(layout, ImageOrder::BySample).for_evaluation();
    let samples = chosen(&program, train.len());
    let (mut inputs, mut answers) = (Vec::new(), Answers::default());
    train.gather(&samples, &mut inputs, &mut answers);
    let x = from_rows(&Cpu::default(), samples.len(), train.features(), inputs)?;
    let noted = Arc::new(Mutex::new(vec![0.0; statistics]));
    let pass = Pass::new(
        Parameters::new(&Cpu::default(), weights.to_vec())?,
        0,
        Statistics::Noted(Arc::clone(&noted)),
    );
    let network = match bits {
        Bits::Any => network(program, threads),
        Bits::Fixed => exact_network(program, threads),
    };
    network.forward(&pass, x)?;
    let noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(noted.clone())
}

/// Chooses samples for measuring batch-norm statistics: as many as a budget of multiply-adds allows, spread evenly,
/// because files may be sorted.
pub(crate) fn chosen(program: &Program, samples: usize) -> Vec<u32> {
    let worth_it = PRODUCTS / products(&program.ops).max(1);
    let count = worth_it.clamp(SAMPLES_MIN, SAMPLES_MAX).min(samples as u64);
    (0..count).map(|at| (at * samples as u64 / count) as u32).collect()
}

/// Chooses minibatches of training samples on which a module's running statistics are measured. None has a single sample,
/// which has no variance, unless there is no other: then that is taken twice.
pub(crate) fn minibatches(samples: usize, minibatch: usize) -> impl Iterator<Item = Vec<u32>> {
    let count = samples.min(MODULE_SAMPLES);
    let chosen = move |at: usize| (at * samples / count) as u32;
    let minibatches = (count / minibatch.max(2)).max(1);
    (0..if count == 0 { 0 } else { minibatches }).map(move |first| {
        let minibatch: Vec<u32> = (first..count).step_by(minibatches).map(chosen).collect();
        match minibatch[..] {
            [only] => vec![only; 2],
            _ => minibatch,
        }
    })
}

/// Returns the number of multiply-adds of these operations for one sample.
fn products(ops: &[Op]) -> u64 {
    let of = |op: &Op| match op {
        Op::Dense(dense) => (dense.inputs * dense.outputs) as u64,
        Op::Conv(conv) => (conv.geometry.window() * conv.geometry.output_len()) as u64,
        Op::Residual(block) => products(&block.body) + products(&block.skip),
        _ => 0,
    };
    ops.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use protocol::job::model::initial_counts;
    use protocol::weights::lattice::weight_of;

    use super::*;
    use crate::dataset::Dataset;

    #[test]
    fn fixed_bits_are_those_of_any_threads_and_near_the_fast_ones() {
        let data = Dataset::open(&"builtin:mnist".parse().unwrap(), 1, None).unwrap();
        let text = "conv 4 3x3 stride 3 nobias, batchnorm, silu, residual [ conv 4 3x3 pad 1, batchnorm, tanh ], dense 20, batchnorm, sigmoid, dropout 0.5, dense";
        let layout = Layout::new(&text.parse().unwrap(), data.input, 10).unwrap();
        let weights: Vec<f32> = initial_counts(&layout, 3).into_iter().map(weight_of).collect();
        let measured = |threads, bits| measure(&layout, &weights, &data.train, Threads(threads), bits).unwrap();
        let fixed = measured(1, Bits::Fixed);
        assert_eq!(fixed.len(), 2 * (4 + 4 + 20));
        let same = measured(3, Bits::Fixed);
        assert!(
            fixed
                .iter()
                .zip(&same)
                .all(|(one, other)| one.to_bits() == other.to_bits())
        );
        for (fixed, fast) in fixed.iter().zip(measured(2, Bits::Any)) {
            assert!((fixed - fast).abs() < 1e-4 * fixed.abs().max(1.0), "{fixed} {fast}");
        }
        // Variances must be positive; means may be negative.
        let variances = layout.statistics.iter().filter(|slot| slot.key.ends_with("var"));
        assert!(
            variances
                .flat_map(|slot| &fixed[slot.range()])
                .all(|&variance| variance > 0.0)
        );
    }

    #[test]
    fn minibatches_for_modules_have_two_samples_at_least_and_no_sample_twice() {
        for (samples, minibatch, wanted) in [(5, 2, vec![3, 2]), (1, 64, vec![2]), (3, 1, vec![3]), (0, 8, vec![])] {
            let sizes: Vec<usize> = minibatches(samples, minibatch)
                .map(|minibatch| minibatch.len())
                .collect();
            assert_eq!(sizes, wanted, "{samples} samples in minibatches of {minibatch}");
        }
        let mut all: Vec<u32> = minibatches(60_000, 100).flatten().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!((all.len(), all[1], all[1023]), (1024, 58, 59_941));
    }

    #[test]
    fn samples_are_spread_evenly_and_as_many_as_are_worth_it() {
        let program = |text: &str, features| {
            let shape = protocol::job::model::Shape::Flat(features);
            Program::new(
                &Layout::new(&text.parse().unwrap(), shape, 2).unwrap(),
                ImageOrder::BySample,
            )
        };
        assert_eq!(chosen(&program("dense", 4), 5), [0, 1, 2, 3, 4]);
        let few = chosen(&program("dense 100000, dense", 10_000), 60_000);
        assert_eq!((few.len(), few[1], few[255]), (256, 234, 59_765));
        assert_eq!(chosen(&program("dense", 4), 60_000).len(), 4096);
    }
}
