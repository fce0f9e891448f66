//! Evaluation of a model on a GPU: forward passes over samples that lie there.

use std::rc::Rc;
use std::sync::Arc;

use protocol::job::model::Layout;

use super::address::DeviceAddress;
use super::dataset::{DeviceDataset, SampleSet};
use super::error::GpuError;
use super::gpu::Gpu;
use super::layers::Statistics;
use super::memory::{Array, Pinned, copy_words};
use super::model::{CudaModel, Purpose};
use super::tensor_address::{TensorAddress, tensor_at};
use crate::backend::device::Precision;
use crate::dataset::Dataset;
use crate::model::measuring::chosen;
use crate::model::ops::loss::{EvalSums, eval_sums};
use crate::model::program::{ImageOrder, Program};
use crate::model::tape::Parameters;
use crate::task::objective::{Objective, Task};

/// Evaluates a model on the evaluation samples of a dataset. It belongs to one thread.
pub struct CudaEvaluator {
    dataset: Arc<Dataset>,
    objective: Objective,
    samples: DeviceDataset,
    model: CudaModel,
    weights: Array<f32>,
    parameters: Parameters<TensorAddress>,
    /// Means and variances that the model's batch norms use in evaluations.
    statistics: Array<f32>,
    /// Training samples on which the means and variances of batch norms are measured; `None` for models without any.
    measured: Option<Measured>,
    logits: Pinned<u32>,
    gpu: Rc<Gpu>,
}

/// A model and training samples for measuring batch-norm statistics in one pass.
struct Measured {
    model: CudaModel,
    samples: DeviceDataset,
    chosen: Vec<u32>,
}

impl Measured {
    fn new(gpu: &Rc<Gpu>, dataset: &Arc<Dataset>, program: &Program, objective: &Objective) -> Result<Self, GpuError> {
        let chosen = chosen(program, dataset.train.len());
        Ok(Self {
            model: CudaModel::new(gpu, program, objective, chosen.len(), Purpose::Evaluation)?,
            samples: DeviceDataset::new(gpu, Arc::clone(dataset), SampleSet::Train, chosen.len())?,
            chosen,
        })
    }
}

impl CudaEvaluator {
    /// Number of samples that are evaluated at once.
    pub const MINIBATCH: usize = 256;

    /// Makes an evaluator on the GPU with this number. It computes in full precision: evaluation must not depend on the
    /// precision used in training.
    pub fn new(ordinal: usize, task: Task, layout: &Layout) -> Result<Self, GpuError> {
        let Task { dataset, objective, .. } = task;
        let gpu = Rc::new(Gpu::open(ordinal, Precision::F32)?);
        let program = Program::new(layout, ImageOrder::ByChannel).for_evaluation();
        let weights = Array::zeros(&gpu, layout.weights)?;
        let measured = match layout.measured() {
            0 => None,
            _ => Some(Measured::new(&gpu, &dataset, &program, &objective)?),
        };
        Ok(Self {
            statistics: Array::zeros(&gpu, layout.measured())?,
            measured,
            parameters: Parameters::stored(tensor_at(weights.at(), (layout.weights,))?)?,
            weights,
            model: CudaModel::new(&gpu, &program, &objective, Self::MINIBATCH, Purpose::Evaluation)?,
            logits: Pinned::zeros(&gpu, Self::MINIBATCH * layout.outputs())?,
            samples: DeviceDataset::new(&gpu, Arc::clone(&dataset), SampleSet::Test, Self::MINIBATCH)?,
            dataset,
            objective,
            gpu,
        })
    }

    /// Sets the weights for the next evaluations.
    pub fn set_weights(&mut self, weights: &[f32]) -> Result<(), GpuError> {
        self.weights.write(&self.gpu, weights)
    }

    /// Sets the batch-norm statistics for the next evaluations; `None` measures them on training samples.
    pub fn set_statistics(&mut self, given: Option<&[f32]>) -> Result<(), GpuError> {
        let Some(Measured { model, samples, chosen }) = &mut self.measured else {
            return Ok(());
        };
        if let Some(given) = given {
            return self.statistics.write(&self.gpu, given);
        }
        let images = model.images(chosen.len());
        // SAFETY: the model has room for all chosen samples.
        unsafe { samples.gather(&self.gpu, chosen, 0, images, model.x(), model.labels())? };
        let noted = Statistics::Noted(self.statistics.at());
        model.logits(&self.parameters, chosen.len(), noted).map(drop)
    }

    /// Returns the sums from which loss and accuracy follow, for at most [`CudaEvaluator::MINIBATCH`] evaluation
    /// samples.
    pub fn eval_sums(&mut self, minibatch: &[u32]) -> Result<EvalSums, GpuError> {
        let images = self.model.images(minibatch.len());
        let (x, labels) = (self.model.x(), self.model.labels());
        // SAFETY: the model has room for the largest minibatch.
        unsafe { self.samples.gather(&self.gpu, minibatch, 0, images, x, labels)? };
        let (logits, classes) = self.model.logits(
            &self.parameters,
            minibatch.len(),
            Statistics::Given(self.statistics.at()),
        )?;
        let count = minibatch.len() * classes;
        // SAFETY: the host buffer has room for the logits of the largest minibatch, and is read only after the wait.
        unsafe { copy_words(&self.gpu, DeviceAddress::new(logits.address()), self.logits.at(), count)? };
        self.gpu.wait()?;
        let logits: Vec<f32> = self.logits[..count].iter().copied().map(f32::from_bits).collect();
        let answers = self.dataset.test.answers_at(minibatch);
        Ok(eval_sums(&self.objective, &logits, &answers))
    }
}
