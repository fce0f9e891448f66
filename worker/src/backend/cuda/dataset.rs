//! Training or evaluation samples on the GPU: all of them if they fit, else one minibatch at a time.

use std::sync::Arc;

use cudarc::driver::CudaEvent;
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
    /// What differs between two minibatches, on the device: the key of the step, which decides dropout, in two words;
    /// then the index of each sample, and its augmentation (random change of an image), if there is any.
    sent: Array<u32>,
    /// Copies of [`DeviceDataset::sent`] in host memory that the device copies from, used in turn: the device may not
    /// have copied the last one yet.
    pinned: [Pinned<u32>; 2],
    /// Events behind the copies from the two buffers in host memory.
    copied: [CudaEvent; 2],
    turn: usize,
    minibatch: usize,
    /// Inputs of a minibatch that the host has gathered.
    inputs: Vec<f32>,
    augment: Augment,
}

/// Number of words of a step's key.
const KEY_WORDS: usize = 2;

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
        let words_sent = KEY_WORDS + if augment.is_none() { minibatch } else { 2 * minibatch };
        let event = || gpu.stream.context().new_event(None);
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
            sent: Array::zeros(gpu, words_sent)?,
            pinned: [Pinned::zeros(gpu, words_sent)?, Pinned::zeros(gpu, words_sent)?],
            copied: [event()?, event()?],
            turn: 0,
            minibatch,
            inputs: Vec::new(),
            augment,
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
        self.send(gpu, samples, key)?;
        // SAFETY: as the caller has promised.
        unsafe { self.gather_sent(gpu, samples.len(), to, x, labels) }
    }

    /// Sends the device what differs between two minibatches: the key of the step, the samples' indices and their
    /// augmentation.
    pub(super) fn send(&mut self, gpu: &Gpu, samples: &[u32], key: u64) -> Result<(), GpuError> {
        self.turn ^= 1;
        let (pinned, copied) = (&mut self.pinned[self.turn], &self.copied[self.turn]);
        copied.synchronize()?;
        let (key_words, rest) = pinned.split_at_mut(KEY_WORDS);
        key_words.copy_from_slice(&[key as u32, (key >> 32) as u32]);
        let (indices, views) = rest.split_at_mut(self.minibatch);
        let minibatch = &mut indices[..samples.len()];
        if let Samples::Minibatch(floats) = &mut self.samples {
            let mut answers = Answers::default();
            self.part
                .of(&self.dataset)
                .gather(samples, &mut self.inputs, &mut answers);
            floats.write(gpu, &self.inputs)?;
            self.labels.write(gpu, &words(&answers))?;
            (0..).zip(minibatch.iter_mut()).for_each(|(at, index)| *index = at);
        } else {
            minibatch.copy_from_slice(samples);
        }
        let drawn = (!views.is_empty()).then(|| augmentation::draw(self.augment, key, samples.len()));
        for (place, view) in views.iter_mut().zip(drawn.into_iter().flatten()) {
            *place = view.word();
        }
        // SAFETY: both have room for a whole minibatch; the host writes this buffer again only behind the event.
        unsafe { copy_words(gpu, self.pinned[self.turn].at(), self.sent.at(), self.sent.len())? };
        Ok(copied.record(&gpu.stream)?)
    }

    /// Returns the address of the key that was sent last.
    pub(super) fn key_sent(&self) -> DeviceAddress<u64> {
        DeviceAddress::new(self.sent.at().address())
    }

    /// Launches the gathering of the minibatch that was sent last, and its labels.
    ///
    /// # Safety
    /// That minibatch must have this many samples, for which `x` and `labels` have room.
    pub(super) unsafe fn gather_sent(
        &self,
        gpu: &Gpu,
        samples: usize,
        to: Images,
        x: DeviceAddress<f32>,
        labels: DeviceAddress<u32>,
    ) -> Result<(), GpuError> {
        let all = self.part.of(&self.dataset);
        let row = match self.dataset.input {
            Shape::Image { width, .. } if !self.augment.is_none() => width,
            _ => 0,
        };
        let indices = self.sent.from(KEY_WORDS);
        // Without augmentation this is the end of the array, where nothing is read.
        let (views, row) = (self.sent.from(KEY_WORDS + self.minibatch), row as u32);
        let all_labels = self.labels.at();
        let grid = Grid::each(samples * all.features());
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
