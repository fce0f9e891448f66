//! Evaluation on held-out samples.

use dfdx::prelude::Cpu;
use protocol::model::Layout;
use thiserror::Error;

use crate::dataset::Samples;
use crate::network::{Mode, Network};
use crate::ops::{OpError, Parameters, Threads, from_rows, loss};

/// Samples per minibatch of an evaluation: large enough for full speed, small enough for the cache.
const MINIBATCH: usize = 128;

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

/// Evaluates weights on samples. `progress` is told how many are done, from time to time.
pub fn evaluate(
    layout: &Layout,
    weights: Vec<f32>,
    samples: &Samples,
    threads: Threads,
    mut progress: impl FnMut(usize),
) -> Result<Evaluation, EvaluationError> {
    let device = Cpu::default();
    let network = Network::new(layout, threads);
    let parameters = Parameters::new(&device, weights)?;
    let indices: Vec<u32> = (0..samples.len() as u32).collect();
    let mut labels = Vec::new();
    let mut total = loss::Judgement::default();
    let mut done = 0;
    for minibatch in indices.chunks(MINIBATCH) {
        let mut inputs = Vec::new();
        samples.gather(minibatch, &mut inputs, &mut labels);
        let x = from_rows(&device, minibatch.len(), samples.features(), inputs)?;
        let judged = loss::judge(&network.forward(&parameters, x, Mode::Evaluation)?, &labels);
        total.loss += judged.loss;
        total.correct += judged.correct;
        done += minibatch.len();
        progress(done);
    }
    let count = samples.len().max(1) as f64;
    Ok(Evaluation {
        accuracy: total.correct as f64 / count,
        loss: total.loss / count,
        samples: samples.len(),
    })
}
