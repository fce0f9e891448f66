//! Training or evaluation samples on the GPU: all of them if they fit, else one minibatch at a time.

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

/// A dataset is held in GPU memory if it takes at most the free memory divided by this number; activations need room,
/// too.
const SHARE: usize = 2;

enum Samples {
    Bytes(Array<u8>),
    Floats(Array<f32>),
    /// Choice for data that is too large for the GPU: the samples stay on the host, and this buffer holds one
    /// minibatch.
    Minibatch(Array<f32>),
}

/// Choice between the training and the evaluation samples of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleSet {
    /// The dataset's training samples.
    Train,
    /// The dataset's evaluation samples.
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
    /// Labels of the samples or, if numbers are to be predicted, the bits of these numbers.
    labels: Array<u32>,
    /// Number of labels or target numbers per sample.
    width: usize,
    indices: Array<u32>,
    /// Indices of a minibatch's samples, in host memory that the device copies from.
    pinned: Pinned<u32>,
    /// Inputs of a minibatch that the host has gathered.
    inputs: Vec<f32>,
    augment: Augment,
    /// Augmentation (random change) of each image in a minibatch as one word, on the device; `pinned_views` is its copy
    /// in host memory. Both are empty without augmentation.
    views: Array<u32>,
    pinned_views: Pinned<u32>,
}

/// Returns the number of labels or target numbers per sample.
fn width(answers: &Answers) -> usize {
    match answers {
        Answers::Labels(_) => 1,
        Answers::Numbers { width, .. } => *width,
    }
}

/// Returns answers as words for the GPU: labels as they are, and target numbers as their bits.
pub(super) fn words(answers: &Answers) -> Vec<u32> {
    match answers {
        Answers::Labels(labels) => labels.clone(),
        Answers::Numbers { values, .. } => values.iter().map(|value| value.to_bits()).collect(),
    }
}

impl DeviceDataset {
    /// Puts one of a dataset's sample sets on a GPU, without augmentation of images.
    pub(super) fn new(gpu: &Gpu, dataset: Arc<Dataset>, part: SampleSet, minibatch: usize) -> Result<Self, GpuError> {
        Self::varied(gpu, dataset, part, minibatch, Augment::default())
    }

    /// Puts one of a dataset's sample sets on a GPU; images are augmented anew each time they are gathered.
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
            // Samples in a scratch file do not fit into main memory; minibatches are read from the file.
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

    /// Launches the gathering of a minibatch and its labels. `key` seeds the augmentation.
    ///
    /// # Safety
    /// `x` and `labels` must have room for this many samples.
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
        // SAFETY: both have room for a minibatch; the host writes the next one after it has waited for this step.
        unsafe { copy_words(gpu, self.pinned.at(), self.indices.at(), samples.len())? };
        let row = match self.dataset.input {
            Shape::Image { width, .. } if !self.augment.is_none() => width,
            _ => 0,
        };
        if row > 0 {
            let drawn = augmentation::draw(self.augment, key, samples.len());
            let places = self.pinned_views.iter_mut();
            places.zip(drawn).for_each(|(place, view)| *place = view.word());
            // SAFETY: as above, for the augmentations.
            unsafe { copy_words(gpu, self.pinned_views.at(), self.views.at(), samples.len())? };
        }
        let (views, row) = (self.views.at(), row as u32);
        let (all_labels, indices) = (self.labels.at(), self.indices.at());
        let grid = Grid::each(samples.len() * all.features());
        // SAFETY: the sampling plan draws indices below the number of samples; the caller promises room for a
        // minibatch.
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
