//! Evaluation: measures a model's accuracy and loss on the evaluation samples.

pub mod predict;

use std::sync::{Arc, Mutex, PoisonError};

use protocol::job::model::Layout;
use protocol::stats::named::NamedNumbers;
use thiserror::Error;

#[cfg(feature = "cuda")]
use crate::backend::cuda::{CudaEvaluator, GpuError};
use crate::backend::device::Device;
use crate::dataset::{Answers, Samples};
use crate::evaluate::predict::Predictor;
use crate::machine::parallel::{Threads, map_parts};
use crate::model::evaluation::{Evaluation, MINIBATCH, NamedSums};
use crate::model::measuring::{self, Bits, measure};
use crate::model::ops::OpError;
use crate::model::ops::loss::{self, EvalSums};
use crate::module::{CheckedNetwork, ModuleFailure, Rows};
use crate::task::objective::{Objective, Task};

#[derive(Debug, Error)]
pub enum EvaluationError {
    #[error("the evaluation failed: {0}")]
    Device(#[from] OpError),
    /// Reason why a model could not be evaluated: the user's code failed.
    #[error(transparent)]
    Module(#[from] ModuleFailure),
}

/// Evaluates a module (a network of the user's code) with these weights on the evaluation samples, as [`evaluate`] does.
pub fn evaluate_module(
    network: &mut CheckedNetwork,
    weights: &[f32],
    task: &Task,
    minibatch: usize,
    go_on: impl FnMut(&Evaluation) -> bool,
) -> Result<Evaluation, EvaluationError> {
    let Task { dataset, objective, .. } = task;
    let samples = &dataset.test;
    let observed = measuring::minibatches(dataset.train.len(), minibatch);
    network.settle(weights, &dataset.train, observed)?;
    if let Some(positions) = samples.all_positions() {
        return measure_module(network, weights, positions, minibatch, go_on);
    }
    let infer = |rows: Rows<'_>| Ok(network.infer(weights, rows)?);
    evaluate_by(samples, objective, minibatch, infer, go_on)
}

/// Evaluates what computes outputs of samples, as [`evaluate`] does, in minibatches of this size.
pub fn evaluate_by<E>(
    samples: &Samples,
    objective: &Objective,
    minibatch: usize,
    mut outputs: impl FnMut(Rows<'_>) -> Result<Vec<f32>, E>,
    go_on: impl FnMut(&Evaluation) -> bool,
) -> Result<Evaluation, E> {
    let (mut inputs, mut answers) = (Vec::new(), Answers::default());
    let mut sums_of = |minibatch: &Vec<u32>| -> Result<EvalSums, E> {
        samples.gather(minibatch, &mut inputs, &mut answers);
        let rows = Rows {
            values: &inputs,
            samples: minibatch.len(),
        };
        Ok(loss::eval_sums(objective, &outputs(rows)?, &answers))
    };
    let sizes = Sizes {
        samples: samples.len(),
        minibatch,
        at_once: 1,
    };
    in_rounds(
        sizes,
        objective,
        |round| round.iter().map(&mut sums_of).collect(),
        go_on,
    )
}

/// Measures a module with these weights on its own samples at these positions, as [`evaluate`] does.
fn measure_module(
    network: &mut CheckedNetwork,
    weights: &[f32],
    positions: &[u32],
    minibatch: usize,
    mut go_on: impl FnMut(&Evaluation) -> bool,
) -> Result<Evaluation, EvaluationError> {
    let mut sums = NamedSums::default();
    for minibatch in spread(positions.len(), minibatch) {
        let minibatch: Vec<u32> = minibatch.into_iter().map(|at| positions[at as usize]).collect();
        sums.add(network.measure(weights, &minibatch)?, minibatch.len());
        if !go_on(&sums.evaluation()) {
            break;
        }
    }
    Ok(sums.evaluation())
}

/// Evaluates weights on samples on the CPU; each thread evaluates minibatches of its own. After every few minibatches
/// `go_on` gets the result on the samples evaluated so far, which are spread evenly over all samples; if it returns
/// false, the evaluation ends with that result.
pub fn evaluate(
    layout: &Layout,
    weights: Vec<f32>,
    statistics: Vec<f32>,
    samples: &Samples,
    objective: &Objective,
    threads: Threads,
    go_on: impl FnMut(&Evaluation) -> bool,
) -> Result<Evaluation, EvaluationError> {
    let predictor = Predictor::new(layout, weights, statistics)?;
    let evaluate_minibatch = |minibatch: Vec<u32>| -> Result<EvalSums, EvaluationError> {
        let (logits, answers) = predictor.logits(samples, &minibatch)?;
        Ok(loss::eval_sums(objective, &logits, &answers))
    };
    let evaluate_side_by_side = |round: Vec<Vec<u32>>| map_parts(round, evaluate_minibatch).into_iter().collect();
    let sizes = Sizes {
        samples: samples.len(),
        minibatch: MINIBATCH,
        at_once: threads.0,
    };
    in_rounds(sizes, objective, evaluate_side_by_side, go_on)
}

/// Division of an evaluation: number of samples in all, samples in a minibatch, and minibatches at once.
#[derive(Clone, Copy)]
struct Sizes {
    samples: usize,
    minibatch: usize,
    /// Number of evaluation minibatches that are computed in parallel.
    at_once: usize,
}

/// Returns minibatches of nearly equal size with at most `minibatch` samples each, which are spread evenly over all
/// samples.
fn spread(samples: usize, minibatch: usize) -> impl Iterator<Item = Vec<u32>> {
    let minibatches = samples.div_ceil(minibatch);
    (0..minibatches).map(move |first| (first..samples).step_by(minibatches).map(|at| at as u32).collect())
}

/// Evaluates all samples in rounds of parallel minibatches. Each minibatch takes samples that are spread evenly over
/// all of them, so that early results are representative.
fn in_rounds<E>(
    sizes: Sizes,
    objective: &Objective,
    mut evaluate_round: impl FnMut(Vec<Vec<u32>>) -> Result<Vec<EvalSums>, E>,
    mut go_on: impl FnMut(&Evaluation) -> bool,
) -> Result<Evaluation, E> {
    let mut minibatches = spread(sizes.samples, sizes.minibatch);
    let mut all = EvalSums::default();
    let mut found = Evaluation {
        accuracy: Some(0.0),
        loss: 0.0,
        mae: None,
        named: NamedNumbers::default(),
        samples: 0,
    };
    loop {
        let round: Vec<Vec<u32>> = minibatches.by_ref().take(sizes.at_once.max(1)).collect();
        if round.is_empty() {
            break;
        }
        found.samples += round.iter().map(Vec::len).sum::<usize>();
        for sums in evaluate_round(round)? {
            all.add(&sums);
        }
        found = Evaluation::of(objective, &all, found.samples);
        if !go_on(&found) {
            break;
        }
    }
    Ok(found)
}

/// Evaluates a model repeatedly on the device that trains it. Belongs to one thread.
pub struct Evaluator {
    task: Task,
    layout: Layout,
    /// Network that evaluates, if the model is a module (a network of the user's code).
    module: Option<Arc<Mutex<CheckedNetwork>>>,
    /// Most samples that a module evaluates at once: no more than it trains on.
    minibatch: usize,
    /// Threads of an evaluation on the CPU.
    threads: Threads,
    #[cfg(feature = "cuda")]
    gpu: OnGpu,
}

/// State of an evaluator's GPU: not used, not opened yet, or ready.
#[cfg(feature = "cuda")]
enum OnGpu {
    /// Evaluations run on the CPU, because the device that trains is the CPU or because the GPU has failed.
    No,
    /// Evaluations are to run on the GPU of this number, which is opened at the first of them.
    Untried(usize),
    Ready(Box<CudaEvaluator>),
}

impl Evaluator {
    /// Creates an evaluator on the device that trains. A GPU is opened at the first evaluation.
    #[must_use]
    pub fn new(device: &Device, task: impl Into<Task>, layout: Layout, threads: Threads) -> Self {
        #[cfg(not(feature = "cuda"))]
        let Device::Cpu = device;
        Self {
            task: task.into(),
            layout,
            module: None,
            minibatch: MINIBATCH,
            threads,
            #[cfg(feature = "cuda")]
            gpu: match device {
                Device::Cpu => OnGpu::No,
                Device::Cuda { ordinal, .. } => OnGpu::Untried(*ordinal),
            },
        }
    }

    /// Returns the evaluator with a module's network, which then evaluates instead of Tau's own.
    #[must_use]
    pub fn with_module(self, module: Option<Arc<Mutex<CheckedNetwork>>>, minibatch: u32) -> Self {
        Self {
            module,
            minibatch: MINIBATCH.min(minibatch as usize),
            ..self
        }
    }

    /// Evaluates weights on the evaluation samples, as [`evaluate`] does. Without `statistics`, the batch norms' means
    /// and variances are measured first. If the GPU has too little memory or fails, the CPU evaluates from then on.
    pub fn evaluate(
        &mut self,
        weights: Vec<f32>,
        statistics: Option<Vec<f32>>,
        go_on: &mut dyn FnMut(&Evaluation) -> bool,
    ) -> Result<Evaluation, EvaluationError> {
        if let Some(network) = &self.module {
            let mut network = network.lock().unwrap_or_else(PoisonError::into_inner);
            return evaluate_module(&mut network, &weights, &self.task, self.minibatch, go_on);
        }
        #[cfg(feature = "cuda")]
        match self.evaluate_on_gpu(&weights, statistics.as_deref(), go_on) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(
                    event = "gpu_evaluation_failed",
                    "the GPU cannot evaluate the model, which is evaluated on the CPU from now on: {error}"
                );
                self.gpu = OnGpu::No;
            }
        }
        let statistics = match statistics {
            Some(statistics) => statistics,
            None => measure(
                &self.layout,
                &weights,
                &self.task.dataset.train,
                self.threads,
                Bits::Any,
            )?,
        };
        let Task { dataset, objective, .. } = &self.task;
        evaluate(
            &self.layout,
            weights,
            statistics,
            &dataset.test,
            objective,
            self.threads,
            go_on,
        )
    }

    #[cfg(feature = "cuda")]
    fn evaluate_on_gpu(
        &mut self,
        weights: &[f32],
        statistics: Option<&[f32]>,
        go_on: &mut dyn FnMut(&Evaluation) -> bool,
    ) -> Result<Option<Evaluation>, GpuError> {
        if let OnGpu::Untried(ordinal) = self.gpu {
            let opened = CudaEvaluator::new(ordinal, self.task.clone(), &self.layout)?;
            self.gpu = OnGpu::Ready(Box::new(opened));
        }
        let OnGpu::Ready(gpu) = &mut self.gpu else {
            return Ok(None);
        };
        gpu.set_weights(weights)?;
        gpu.set_statistics(statistics)?;
        let sizes = Sizes {
            samples: self.task.dataset.test.len(),
            minibatch: CudaEvaluator::MINIBATCH,
            at_once: 1,
        };
        let evaluate_round = |round: Vec<Vec<u32>>| round.iter().map(|minibatch| gpu.eval_sums(minibatch)).collect();
        in_rounds(sizes, &self.task.objective, evaluate_round, go_on).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(samples: usize, accuracy: f64) -> Evaluation {
        Evaluation {
            accuracy: Some(accuracy),
            loss: 1.0,
            mae: None,
            named: NamedNumbers::default(),
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
        let without_accuracy = Evaluation {
            accuracy: None,
            ..on(10_000, 0.0)
        };
        assert!(!without_accuracy.rules_out(0.97));
    }
}
