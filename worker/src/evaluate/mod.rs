//! Evaluation on evaluation samples.

pub mod predict;

use protocol::job::model::Layout;
use thiserror::Error;

#[cfg(feature = "cuda")]
use crate::backend::cuda::{CudaEvaluator, GpuError};
use crate::backend::device::Device;
use crate::dataset::Samples;
use crate::evaluate::predict::Predictor;
use crate::machine::parallel::{Threads, map_parts};
use crate::model::evaluation::{Evaluation, MINIBATCH};
use crate::model::measuring::{Bits, measure};
use crate::model::ops::OpError;
use crate::model::ops::loss::{self, EvalSums};
use crate::task::objective::{Objective, Task};

/// Why there is no evaluation.
#[derive(Debug, Error)]
pub enum EvaluationError {
    /// The device failed.
    #[error("the evaluation failed: {0}")]
    Device(#[from] OpError),
}

/// Evaluates weights on samples on the CPU, with each thread at minibatches of its own. Now and then `go_on` is told how
/// good the model is on what is done, which is spread evenly over all samples; what it refuses to go on with ends there.
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

/// How samples are gone through.
#[derive(Clone, Copy)]
struct Sizes {
    samples: usize,
    minibatch: usize,
    /// Minibatches that are judged side by side.
    at_once: usize,
}

/// Goes through all samples in rounds of minibatches, each of which is spread evenly over them.
fn in_rounds<E>(
    sizes: Sizes,
    objective: &Objective,
    mut evaluate_round: impl FnMut(Vec<Vec<u32>>) -> Result<Vec<EvalSums>, E>,
    mut go_on: impl FnMut(&Evaluation) -> bool,
) -> Result<Evaluation, E> {
    let minibatches = sizes.samples.div_ceil(sizes.minibatch);
    let minibatch = |first: usize| -> Vec<u32> {
        let spread = (first..sizes.samples).step_by(minibatches);
        spread.map(|sample| sample as u32).collect()
    };
    let mut all = EvalSums::default();
    let mut found = Evaluation {
        accuracy: 0.0,
        loss: 0.0,
        mae: None,
        samples: 0,
    };
    let firsts: Vec<usize> = (0..minibatches).collect();
    for round in firsts.chunks(sizes.at_once.max(1)) {
        let round: Vec<Vec<u32>> = round.iter().map(|&first| minibatch(first)).collect();
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

/// Evaluates a model now and then, where it is trained. Belongs to one thread.
pub struct Evaluator {
    task: Task,
    layout: Layout,
    /// On the CPU.
    threads: Threads,
    #[cfg(feature = "cuda")]
    gpu: OnGpu,
}

/// What is known of the GPU that is to evaluate.
#[cfg(feature = "cuda")]
enum OnGpu {
    /// None does, or it could not.
    No,
    /// The one of this number, once it is asked.
    Untried(usize),
    Ready(Box<CudaEvaluator>),
}

impl Evaluator {
    /// An evaluator on the device that trains. If that is a GPU, it is opened when it is first needed.
    #[must_use]
    pub fn new(device: &Device, task: impl Into<Task>, layout: Layout, threads: Threads) -> Self {
        #[cfg(not(feature = "cuda"))]
        let Device::Cpu = device;
        Self {
            task: task.into(),
            layout,
            threads,
            #[cfg(feature = "cuda")]
            gpu: match device {
                Device::Cpu => OnGpu::No,
                Device::Cuda { ordinal, .. } => OnGpu::Untried(*ordinal),
            },
        }
    }

    /// Evaluates weights on the evaluation samples, as [`evaluate`] does. Statistics that are not given are measured. A GPU
    /// that has not enough memory left for that, or fails, is not asked again: the CPU does it instead.
    pub fn evaluate(
        &mut self,
        weights: Vec<f32>,
        statistics: Option<Vec<f32>>,
        go_on: &mut dyn FnMut(&Evaluation) -> bool,
    ) -> Result<Evaluation, EvaluationError> {
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
            accuracy,
            loss: 1.0,
            mae: None,
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
