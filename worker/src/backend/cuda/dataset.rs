//! Samples on the device: all of them if they fit, else those of a minibatch at a time.

use std::sync::Arc;

use protocol::job::augment::Augment;
use protocol::job::model::Shape;

use super::abi::Images;
use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::{Gpu, Grid};
use super::kernels::{GatherBytes, GatherFloats};
use super::memory::{Array, Pinned, copy_words};
use crate::dataset::{Answers, Dataset, Scaling, Values};
use crate::task::augmentation;

/// The part of the free memory that a dataset may take; activations need room, too.
const SHARE: usize = 2;

enum Samples {
    Bytes(Array<u8>),
    Floats(Array<f32>),
    /// They stay with the host.
    Minibatch(Array<f32>),
}

/// Which samples of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleSet {
    /// Those that a model is trained on.
    Train,
    /// Those that are set aside.
    Test,
}

impl SampleSet {
    fn of(self, dataset: &Dataset) -> &crate::dataset::Samples {
        match self {
            Self::Train => &dataset.train,
            Self::Test => &dataset.test,
        }
    }
}

pub(super) struct DeviceDataset {
    dataset: Arc<Dataset>,
    part: SampleSet,
    samples: Samples,
    /// Labels, or numbers as they lie in memory.
    labels: Array<u32>,
    /// How many each sample has.
    width: usize,
    indices: Array<u32>,
    /// The indices of a minibatch, on their way.
    pinned: Pinned<u32>,
    /// A minibatch, where the host gathers it.
    inputs: Vec<f32>,
    /// How images are varied.
    augment: Augment,
    /// How each one of a minibatch is looked at, and those views on their way; empty where images stay as they are.
    views: Array<u32>,
    pinned_views: Pinned<u32>,
}

/// How many words say what a sample is.
fn width(answers: &Answers) -> usize {
    match answers {
        Answers::Labels(_) => 1,
        Answers::Numbers { width, .. } => *width,
    }
}

/// What samples are, as words: labels, or numbers as they lie in memory.
pub(super) fn words(answers: &Answers) -> Vec<u32> {
    match answers {
        Answers::Labels(labels) => labels.clone(),
        Answers::Numbers { values, .. } => values.iter().map(|value| value.to_bits()).collect(),
    }
}

impl DeviceDataset {
    /// Samples as they are.
    pub(super) fn new(gpu: &Gpu, dataset: Arc<Dataset>, part: SampleSet, minibatch: usize) -> Result<Self, GpuError> {
        Self::varied(gpu, dataset, part, minibatch, Augment::default())
    }

    /// Samples that are varied each time.
    pub(super) fn varied(
        gpu: &Gpu,
        dataset: Arc<Dataset>,
        part: SampleSet,
        minibatch: usize,
        augment: Augment,
    ) -> Result<Self, GpuError> {
        let views = if augment.is_none() { 0 } else { minibatch };
        let all = part.of(&dataset);
        let free = gpu.free_memory()?;
        let bytes = match all.values() {
            Values::Bytes(bytes) => bytes.len(),
            Values::Floats(floats) => floats.len() * size_of::<f32>(),
            // They lie in a file since they do not fit into memory, and come from there.
            Values::Scratch(_) => usize::MAX,
        };
        let samples = match all.values() {
            _ if bytes > free / SHARE => Samples::Minibatch(Array::zeros(gpu, minibatch * all.features())?),
            Values::Bytes(bytes) => Samples::Bytes(Array::padded(gpu, bytes, 0)?),
            Values::Floats(floats) => Samples::Floats(Array::padded(gpu, floats, 0)?),
            Values::Scratch(_) => Samples::Minibatch(Array::zeros(gpu, minibatch * all.features())?),
        };
        let labels = match samples {
            Samples::Minibatch(_) => Array::zeros(gpu, minibatch * width(all.answers()))?,
            _ => Array::padded(gpu, &words(all.answers()), 0)?,
        };
        Ok(Self {
            samples,
            labels,
            width: width(all.answers()),
            indices: Array::zeros(gpu, minibatch)?,
            pinned: Pinned::zeros(gpu, minibatch)?,
            inputs: Vec::new(),
            augment,
            views: Array::zeros(gpu, views)?,
            pinned_views: Pinned::zeros(gpu, views)?,
            dataset,
            part,
        })
    }

    /// Puts a minibatch and its labels in their places. The key decides how images are looked at.
    ///
    /// # Safety
    /// `x` and `labels` must have room for as many samples.
    pub(super) unsafe fn gather(
        &mut self,
        gpu: &Gpu,
        samples: &[u32],
        key: u64,
        to: Images,
        x: DeviceAddress<f32>,
        labels: DeviceAddress<u32>,
    ) -> Result<(), GpuError> {
        let all = self.part.of(&self.dataset);
        let minibatch = &mut self.pinned[..samples.len()];
        if let Samples::Minibatch(floats) = &mut self.samples {
            let mut answers = Answers::default();
            all.gather(samples, &mut self.inputs, &mut answers);
            floats.write(gpu, &self.inputs)?;
            self.labels.write(gpu, &words(&answers))?;
            (0..).zip(minibatch.iter_mut()).for_each(|(at, index)| *index = at);
        } else {
            minibatch.copy_from_slice(samples);
        }
        // SAFETY: both have room for a minibatch, and the next one comes when this step was waited for.
        unsafe { copy_words(gpu, self.pinned.at(), self.indices.at(), samples.len())? };
        let row = match self.dataset.input {
            Shape::Image { width, .. } if !self.augment.is_none() => width,
            _ => 0,
        };
        if row > 0 {
            let drawn = augmentation::draw(self.augment, key, samples.len());
            let places = self.pinned_views.iter_mut();
            places.zip(drawn).for_each(|(place, view)| *place = view.word());
            // SAFETY: as above.
            unsafe { copy_words(gpu, self.pinned_views.at(), self.views.at(), samples.len())? };
        }
        let (views, row) = (self.views.at(), row as u32);
        let (all_labels, indices) = (self.labels.at(), self.indices.at());
        let grid = Grid::each(samples.len() * all.features());
        // SAFETY: indices are below the number of samples, which the plan has drawn them from; the caller has room for
        // a minibatch.
        unsafe {
            match &self.samples {
                Samples::Bytes(bytes) => gpu.launch(
                    &gpu.kernels.gather_bytes,
                    grid,
                    GatherBytes {
                        values: bytes.at(),
                        all_labels,
                        indices,
                        views,
                        row,
                        to,
                        scale: Scaling::UNIT,
                        x,
                        labels,
                        width: self.width as u32,
                    },
                ),
                Samples::Floats(floats) | Samples::Minibatch(floats) => gpu.launch(
                    &gpu.kernels.gather_floats,
                    grid,
                    GatherFloats {
                        values: floats.at(),
                        all_labels,
                        indices,
                        views,
                        row,
                        to,
                        scale: 1.0,
                        x,
                        labels,
                        width: self.width as u32,
                    },
                ),
            }
        }
    }
}
