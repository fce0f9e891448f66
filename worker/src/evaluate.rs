//! Evaluation on held-out samples.

use dfdx::prelude::Cpu;
use protocol::model::Layout;
use thiserror::Error;

use crate::dataset::Samples;
use crate::ops::{OpError, Parameters, Pass, Threads, from_rows, loss, network, values};
use crate::parts::map_parts;
use crate::program::{ImageOrder, Program};

/// Samples per minibatch of an evaluation: large enough for full speed, small enough for the cache.
const MINIBATCH: usize = 128;
/// From this many samples on an evaluation can tell how it will end.
const SURE_SAMPLES: usize = 1000;
/// How many standard deviations make sure.
const SURE_DEVIATIONS: f64 = 4.0;

/// How good a model is on samples it was not trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The share of samples whose largest logit is at their label.
    pub accuracy: f64,
    /// The mean loss.
    pub loss: f64,
    /// How many samples there were.
    pub samples: usize,
}

/// Why there is no evaluation.
#[derive(Debug, Error)]
pub enum EvaluationError {
    /// The device failed.
    #[error("the evaluation failed: {0}")]
    Device(#[from] OpError),
}

impl Evaluation {
    /// Whether the accuracy on all samples cannot be expected to reach a target any more, from that on the first ones.
    #[must_use]
    pub fn rules_out(&self, target: f64) -> bool {
        let accuracy = self.accuracy;
        let deviation = (accuracy * (1.0 - accuracy) / self.samples.max(1) as f64).sqrt();
        self.samples >= SURE_SAMPLES && accuracy + SURE_DEVIATIONS * deviation < target
    }
}

/// Evaluates weights on samples, with each thread at minibatches of its own. Now and then `go_on` is told how good the
/// model is on what is done, which is spread evenly over all samples; what it refuses to go on with ends there.
pub fn evaluate(
    layout: &Layout,
    weights: Vec<f32>,
    samples: &Samples,
    threads: Threads,
    mut go_on: impl FnMut(&Evaluation) -> bool,
) -> Result<Evaluation, EvaluationError> {
    let pass = Pass {
        parameters: Parameters::new(&Cpu::default(), weights)?,
        key: 0,
    };
    let program = Program::new(layout, ImageOrder::BySample).for_evaluation();
    let network = network(program, Threads(1));
    let judge = |minibatch: Vec<u32>| -> Result<_, EvaluationError> {
        let (mut inputs, mut labels) = (Vec::new(), Vec::new());
        samples.gather(&minibatch, &mut inputs, &mut labels);
        let x = from_rows(&Cpu::default(), minibatch.len(), samples.features(), inputs)?;
        let logits = network.forward(&pass, x)?;
        Ok((loss::judge(values(&logits), &labels), minibatch.len()))
    };

    let minibatches = samples.len().div_ceil(MINIBATCH);
    let minibatch = |first: usize| (first..samples.len()).step_by(minibatches).map(|i| i as u32).collect();
    let (mut loss, mut correct) = (0.0, 0);
    let mut found = Evaluation {
        accuracy: 0.0,
        loss: 0.0,
        samples: 0,
    };
    let firsts: Vec<usize> = (0..minibatches).collect();
    for round in firsts.chunks(threads.0.max(1)) {
        let round: Vec<Vec<u32>> = round.iter().map(|&first| minibatch(first)).collect();
        for judged in map_parts(round, judge) {
            let (judged, count) = judged?;
            loss += judged.loss;
            correct += judged.correct;
            found.samples += count;
        }
        found.accuracy = correct as f64 / found.samples as f64;
        found.loss = loss / found.samples as f64;
        if !go_on(&found) {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(samples: usize, accuracy: f64) -> Evaluation {
        Evaluation {
            accuracy,
            loss: 1.0,
            samples,
        }
    }

    #[test]
    fn only_what_is_clearly_out_of_reach_is_ruled_out() {
        assert!(on(1_000, 0.90).rules_out(0.97));
        assert!(!on(1_000, 0.96).rules_out(0.97));
        assert!(on(5_000, 0.95).rules_out(0.97));
        assert!(!on(100_000, 0.98).rules_out(0.97));
        assert!(!on(100, 0.0).rules_out(0.97));
        assert!(on(10_000, 0.0).rules_out(0.97));
    }
}
