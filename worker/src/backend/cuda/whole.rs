//! A whole network on the device, and the samples that it is trained on.

use std::rc::Rc;

use protocol::job::model::Layout;
use protocol::job::optimiser::Rule;

use super::address::DeviceAddress;
use super::backend::CudaBackend;
use super::dataset::{DeviceDataset, SampleSet};
use super::error::GpuError;
use super::gpu::Gpu;
use super::gradient_source::Loss;
use super::memory::Array;
use super::model::{CudaModel, Purpose};
use super::weights::Weights;
use crate::backend::replica::Replica;
use crate::learning::muon::MuonBlocks;
use crate::model::program::{ImageOrder, Program};
use crate::task::objective::Task;
use crate::trainer::TrainError;
use crate::trainer::gradient_source::GradientSource;

/// Trains on a GPU.
pub type CudaTrainer = Replica<CudaBackend<Whole>>;

impl CudaTrainer {
    /// A trainer whose copies both are the given weights.
    pub fn new(
        gpu: Gpu,
        task: impl Into<Task>,
        layout: &Layout,
        counts: &[i32],
        rule: Rule,
        minibatch: usize,
        dropout_seed: u64,
    ) -> Result<Self, TrainError> {
        let gpu = Rc::new(gpu);
        let whole = || Ok(Whole::new(&gpu, task.into(), layout, minibatch)?);
        let parts = |muon| MuonBlocks::new(layout, muon);
        let backend = CudaBackend::of(&gpu, whole, layout, counts, rule, parts)?;
        Self::on(backend, rule, dropout_seed)
    }
}

/// A network, and its samples.
pub struct Whole {
    model: CudaModel,
    dataset: DeviceDataset,
    gpu: Rc<Gpu>,
}

impl Whole {
    pub(super) fn new(gpu: &Rc<Gpu>, task: Task, layout: &Layout, minibatch: usize) -> Result<Self, GpuError> {
        Ok(Self {
            model: CudaModel::new(
                gpu,
                &Program::new(layout, ImageOrder::ByChannel),
                &task.objective,
                minibatch,
                Purpose::Training,
            )?,
            // After the model: it takes a part of what is left.
            dataset: DeviceDataset::varied(gpu, task.dataset, SampleSet::Train, minibatch, task.augment)?,
            gpu: Rc::clone(gpu),
        })
    }
}

impl GradientSource for Whole {
    type Weights = Weights;
    type Gradient = DeviceAddress<f32>;
    type Loss = Loss;
    type Shared = Array<f32>;

    const WORKS_ALONE: bool = true;

    /// Launches forward, loss and backward.
    fn gradient(
        &mut self,
        weights: &Weights,
        samples: &[u32],
        key: u64,
        gradient: &mut DeviceAddress<f32>,
    ) -> Result<Loss, TrainError> {
        let (x, labels) = (self.model.x(), self.model.labels());
        let images = self.model.images(samples.len());
        // SAFETY: the model has room for the largest minibatch.
        unsafe { self.dataset.gather(&self.gpu, samples, key, images, x, labels)? };
        self.model
            .descend(weights.parameters(), *gradient, samples.len(), key)?;
        Ok(Loss::OnDevice(self.model.losses(), samples.len()))
    }
}
