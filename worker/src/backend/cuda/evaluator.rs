//! Evaluation on a GPU: forward alone, on samples that lie there.

use std::rc::Rc;
use std::sync::Arc;

use protocol::model::Layout;

use super::address::At;
use super::dataset::{DeviceDataset, Part};
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{Array, Pinned, copy_words};
use super::model::{CudaModel, Purpose};
use super::place::{Place, tensor_at};
use crate::dataset::Dataset;
use crate::device::Precision;
use crate::ops::loss::{Judgement, judge};
use crate::program::{ImageOrder, Program};
use crate::tape::Parameters;

/// Judges a model on the held-out samples of a dataset. Belongs to one thread.
pub struct CudaEvaluator {
    dataset: Arc<Dataset>,
    samples: DeviceDataset,
    model: CudaModel,
    weights: Array<f32>,
    parameters: Parameters<Place>,
    logits: Pinned<u32>,
    gpu: Rc<Gpu>,
}

impl CudaEvaluator {
    /// Samples that are judged at once.
    pub const MINIBATCH: usize = 256;

    /// Room for a model's evaluation on a GPU. It multiplies in full: what is told of a model must not depend on the
    /// precision that it was trained in.
    pub fn new(ordinal: usize, dataset: Arc<Dataset>, layout: &Layout) -> Result<Self, GpuError> {
        let gpu = Rc::new(Gpu::open(ordinal, Precision::F32)?);
        let program = Program::new(layout, ImageOrder::ByChannel).for_evaluation();
        let weights = Array::zeros(&gpu, layout.weights)?;
        Ok(Self {
            parameters: Parameters::stored(tensor_at(weights.at(), (layout.weights,))?)?,
            weights,
            model: CudaModel::new(&gpu, &program, Self::MINIBATCH, Purpose::Evaluation)?,
            logits: Pinned::zeros(&gpu, Self::MINIBATCH * dataset.classes.len())?,
            samples: DeviceDataset::new(&gpu, Arc::clone(&dataset), Part::Test, Self::MINIBATCH)?,
            dataset,
            gpu,
        })
    }

    /// The weights that the next minibatches are judged with.
    pub fn set_weights(&mut self, weights: &[f32]) -> Result<(), GpuError> {
        self.weights.write(&self.gpu, weights)
    }

    /// Loss and accuracy on a minibatch of at most [`CudaEvaluator::MINIBATCH`] held-out samples.
    pub fn judge(&mut self, minibatch: &[u32]) -> Result<Judgement, GpuError> {
        let images = self.model.images(minibatch.len());
        let (x, labels) = (self.model.x(), self.model.labels());
        // SAFETY: the model has room for the largest minibatch.
        unsafe { self.samples.gather(&self.gpu, minibatch, images, x, labels)? };
        let (logits, classes) = self.model.logits(&self.parameters, minibatch.len())?;
        let count = minibatch.len() * classes;
        // SAFETY: the host has room for the largest minibatch's logits, and looks when it has waited.
        unsafe { copy_words(&self.gpu, At::new(logits.address()), self.logits.at(), count)? };
        self.gpu.wait()?;
        let logits: Vec<f32> = self.logits[..count].iter().copied().map(f32::from_bits).collect();
        let all = self.dataset.test.labels();
        let labels: Vec<u32> = minibatch.iter().map(|&sample| all[sample as usize]).collect();
        Ok(judge(&logits, &labels))
    }
}
