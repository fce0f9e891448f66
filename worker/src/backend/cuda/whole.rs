//! Gradients of a whole network on a GPU, with the samples that it is trained on.

use std::rc::Rc;

use protocol::job::model::Layout;
use protocol::job::optimiser::Rule;

use super::address::DeviceAddress;
use super::backend::CudaBackend;
use super::dataset::{DeviceDataset, SampleSet};
use super::error::GpuError;
use super::gpu::Gpu;
use super::gradient_source::Loss;
use super::layers::StepKey;
use super::memory::Array;
use super::model::{CudaModel, Purpose};
use super::recorded::Recorded;
use super::weights::Weights;
use crate::backend::replica::Replica;
use crate::learning::muon::MuonBlocks;
use crate::model::program::{ImageOrder, Program};
use crate::task::objective::Task;
use crate::trainer::TrainError;
use crate::trainer::gradient_source::GradientSource;

/// A trainer of a whole network on a GPU.
pub type CudaTrainer = Replica<CudaBackend<Whole>>;

impl CudaTrainer {
    /// Makes a trainer whose own and shared weights both begin as `counts`: the initial weights as multiples of the
    /// step between two neighbouring values.
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

/// A whole network on a GPU, and its training samples: a source of gradients.
pub struct Whole {
    /// The gradient of a full minibatch, recorded with the addresses of the own weights and of the gradient.
    recorded: Recorded<(DeviceAddress<f32>, DeviceAddress<f32>)>,
    model: CudaModel,
    dataset: DeviceDataset,
    gpu: Rc<Gpu>,
}

impl Whole {
    pub(super) fn new(gpu: &Rc<Gpu>, task: Task, layout: &Layout, minibatch: usize) -> Result<Self, GpuError> {
        Ok(Self {
            recorded: Recorded::new(),
            model: CudaModel::new(
                gpu,
                &Program::new(layout, ImageOrder::ByChannel),
                &task.objective,
                minibatch,
                Purpose::Training,
            )?,
            // Made after the model, because the samples take a fixed fraction of the memory that is still free.
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

    /// Launches forward pass, loss and backward pass of a minibatch on the GPU; does not wait for them.
    fn gradient(
        &mut self,
        weights: &Weights,
        samples: &[u32],
        key: u64,
        gradient: &mut DeviceAddress<f32>,
    ) -> Result<Loss, TrainError> {
        let Self {
            recorded,
            model,
            dataset,
            gpu,
        } = self;
        dataset.send(gpu, samples, key)?;
        let (dataset, count, gradient) = (&*dataset, samples.len(), *gradient);
        let launch = || {
            // SAFETY: the model has room for the largest minibatch.
            unsafe { dataset.gather_sent(gpu, count, model.images(count), model.x(), model.labels())? };
            let key = StepKey::OnDevice(dataset.key_sent());
            model.descend(weights.parameters(), gradient, count, key)
        };
        if count == model.minibatch() {
            recorded.run(gpu, (weights.array().at(), gradient), launch)?;
        } else {
            // Only an epoch's last minibatch is smaller.
            launch()?;
        }
        Ok(Loss::OnDevice(model.losses(), count))
    }
}
