//! The training samples on the device: all of them if they fit, else those of a minibatch at a time.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::{Array, Pinned, send};
use crate::dataset::{Dataset, Scaling, Values};

/// The part of the free memory that a dataset may take; activations need room, too.
const SHARE: usize = 2;

/// How a minibatch lies on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Images {
    pub(super) channels: u32,
    pub(super) samples: u32,
    pub(super) plane: u32,
}

enum Samples {
    Bytes(Array<u8>),
    Floats(Array<f32>),
    /// They stay with the host.
    Minibatch(Array<f32>),
}

pub(super) struct DeviceDataset {
    dataset: Arc<Dataset>,
    samples: Samples,
    labels: Array<u32>,
    indices: Array<u32>,
    /// The indices of a minibatch, on their way.
    pinned: Pinned,
    /// A minibatch, where the host gathers it.
    inputs: Vec<f32>,
}

impl DeviceDataset {
    pub(super) fn new(gpu: &Gpu, dataset: Arc<Dataset>, minibatch: usize) -> Result<Self, GpuError> {
        let train = &dataset.train;
        let free = gpu.free_memory()?;
        let bytes = match train.values() {
            Values::Bytes(bytes) => bytes.len(),
            Values::Floats(floats) => floats.len() * size_of::<f32>(),
        };
        let samples = match train.values() {
            _ if bytes > free / SHARE => Samples::Minibatch(Array::zeros(gpu, minibatch * train.features())?),
            Values::Bytes(bytes) => Samples::Bytes(Array::padded(gpu, bytes, 0)?),
            Values::Floats(floats) => Samples::Floats(Array::padded(gpu, floats, 0)?),
        };
        let labels = match samples {
            Samples::Minibatch(_) => Array::zeros(gpu, minibatch)?,
            _ => Array::padded(gpu, train.labels(), 0)?,
        };
        Ok(Self {
            samples,
            labels,
            indices: Array::zeros(gpu, minibatch)?,
            pinned: Pinned::new(gpu, minibatch)?,
            inputs: Vec::new(),
            dataset,
        })
    }

    /// Puts a minibatch and its labels in their places.
    pub(super) fn gather(
        &mut self,
        gpu: &Gpu,
        samples: &[u32],
        to: Images,
        (x, labels): (CUdeviceptr, CUdeviceptr),
    ) -> Result<(), GpuError> {
        let minibatch = &mut self.pinned[..samples.len()];
        let (kernel, values, scale) = match &mut self.samples {
            Samples::Bytes(bytes) => {
                minibatch.copy_from_slice(samples);
                (&gpu.kernels.gather_bytes, bytes.at(), Scaling::UNIT)
            }
            Samples::Floats(floats) => {
                minibatch.copy_from_slice(samples);
                (&gpu.kernels.gather_floats, floats.at(), 1.0)
            }
            Samples::Minibatch(floats) => {
                let mut labels = Vec::new();
                self.dataset.train.gather(samples, &mut self.inputs, &mut labels);
                floats.write(gpu, &self.inputs)?;
                self.labels.write(gpu, &labels)?;
                (0..).zip(minibatch.iter_mut()).for_each(|(at, index)| *index = at);
                (&gpu.kernels.gather_floats, floats.at(), 1.0)
            }
        };
        send(gpu, minibatch, self.indices.at())?;
        let launch = gpu.kernel(kernel);
        let launch = launch.with(values).with(self.labels.at()).with(self.indices.at());
        let launch = launch.with(to).with(scale).with(x).with(labels);
        // SAFETY: indices are below the number of samples, which the plan has drawn them from; `x` and `labels` have room
        // for a minibatch.
        unsafe { launch.each(samples.len() * self.dataset.train.features()) }
    }
}
