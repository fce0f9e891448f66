//! Normalisation on the GPU: shifts each set of numbers to mean 0 and scales it to variance 1.

use super::super::abi::NormSets;
use super::super::address::DeviceAddress;
use super::super::error::GpuError;
use super::super::gpu::{Gpu, Grid};
use super::super::kernels::{NormAsGiven, NormBack, NormBackSums, NormBySums, NormGainsBack, NormSums};
use super::super::memory::Array;
use super::sums::{BLOCKS_BUSY, parts};
use super::{BackwardArrays, ForwardArrays};
use crate::model::program::{Norm, Sets};

const THREADS: usize = 256;

/// Source of the means and variances of batch norms.
#[derive(Clone, Copy)]
pub(in super::super) enum Statistics {
    /// Batch norms use the means and variances of the minibatch, as in training.
    Minibatch,
    /// Batch norms use the minibatch's means and variances, and also write them to this address.
    Noted(DeviceAddress<f32>),
    /// Batch norms use the means and variances at this address.
    Given(DeviceAddress<f32>),
}

/// Buffers that a normalising layer keeps from its forward pass for its backward pass.
pub(super) struct NormRoom {
    /// Partial sums for means and variances: two for each part of a set of numbers that are normalised together.
    found: Array<f64>,
    /// Mean and scaling factor of each set of numbers that are normalised together.
    moments: Array<f32>,
}

impl NormRoom {
    pub(super) fn new(gpu: &Gpu, norm: &Norm, minibatch: usize) -> Result<Self, GpuError> {
        let sets = norm.count(minibatch);
        Ok(Self {
            // A few large sets are divided into parts, so that enough thread blocks keep the GPU busy.
            found: Array::zeros(gpu, 2 * sets.max(BLOCKS_BUSY))?,
            moments: Array::zeros(gpu, 2 * sets)?,
        })
    }

    /// Makes a normalising layer's buffers for another micro-batch in flight.
    pub(super) fn beside(&self, gpu: &Gpu) -> Result<Self, GpuError> {
        Ok(Self {
            found: Array::zeros(gpu, self.found.len())?,
            moments: Array::zeros(gpu, self.moments.len())?,
        })
    }
}

/// Describes the sets of numbers that are normalised together. Vectors are stored as rows, images by channel.
fn sets(norm: &Norm, samples: usize) -> NormSets {
    let (channels, plane, features) = (norm.channels, norm.plane, norm.channels * norm.plane);
    // Numbers in one channel of all samples.
    let across = samples * plane;
    let sets = norm.count(samples);
    let members = norm.set_len(samples);
    let (inner, outer_step, inner_step, chunk, chunk_step) = match (norm.sets, norm.flat) {
        (Sets::Channels, false) => (1, across, 0, across, 0),
        (Sets::Channels, true) => (1, 1, 0, 1, channels),
        (Sets::Samples, false) => (1, plane, 0, plane, across),
        (Sets::Samples, true) => (1, features, 0, features, 0),
        (Sets::Groups(groups), false) => (samples, channels / groups * across, plane, plane, across),
        (Sets::Groups(groups), true) => (1, channels / groups, 0, channels / groups, 0),
    };
    let (gain_sets, gain_groups, gain_step, per_gain) = match (norm.sets, norm.flat) {
        (Sets::Channels, _) => (1, channels, 1, members),
        (Sets::Samples, _) => (1, 1, 0, 1),
        (Sets::Groups(groups), false) => (samples, groups, channels / groups, plane),
        (Sets::Groups(groups), true) => (1, groups, channels / groups, 1),
    };
    let of = |number: usize| number as u32;
    NormSets {
        sets: of(sets),
        inner: of(inner),
        outer_step: of(outer_step),
        inner_step: of(inner_step),
        chunks: of(members / chunk),
        chunk: of(chunk),
        chunk_step: of(chunk_step),
        gain_sets: of(gain_sets),
        gain_groups: of(gain_groups),
        gain_step: of(gain_step),
        per_gain: of(per_gain),
        parts: of(parts(sets, members.div_ceil(THREADS))),
        relu: u32::from(norm.relu),
    }
}

fn each_part(by: &NormSets) -> Grid {
    Grid::row((by.sets * by.parts) as usize, THREADS)
}

/// Launches the forward pass of a normalisation.
///
/// # Safety
/// `at` must satisfy [`ForwardArrays`] for this layer, `room` must be made for `at.samples` samples, and the arrays of
/// `statistics` must be those of the whole model.
pub(super) unsafe fn forward(
    gpu: &Gpu,
    norm: &Norm,
    room: &NormRoom,
    statistics: Statistics,
    at: ForwardArrays,
) -> Result<(), GpuError> {
    let by = sets(norm, at.samples);
    let (gains, biases) = (at.weights.plus(norm.gain.start), at.weights.plus(norm.bias.start));
    let kernels = &gpu.kernels;
    let places = |all: DeviceAddress<f32>| {
        let ranges = norm.statistics.as_ref();
        ranges.map(|(means, variances)| (all.plus(means.start), all.plus(variances.start)))
    };
    if let Statistics::Given(all) = statistics
        && let Some((means, variances)) = places(all)
    {
        let arguments = NormAsGiven {
            x: at.x,
            by,
            epsilon: Norm::EPSILON,
            means,
            variances,
            gains,
            biases,
            y: at.y,
        };
        // SAFETY: as the caller has promised; each set has one mean and one variance.
        return unsafe { gpu.launch(&kernels.norm_as_given, each_part(&by), arguments) };
    }
    let noted = match statistics {
        Statistics::Noted(all) => places(all),
        _ => None,
    };
    let (means, variances) = noted.unwrap_or((room.moments.at(), room.moments.at()));
    let sums = NormSums {
        x: at.x,
        by,
        found: room.found.at(),
    };
    let arguments = NormBySums {
        x: at.x,
        by,
        epsilon: Norm::EPSILON,
        found: room.found.at(),
        gains,
        biases,
        y: at.y,
        moments: room.moments.at(),
        noted: u32::from(noted.is_some()),
        means,
        variances,
    };
    // SAFETY: as the caller has promised; the room has two sums for each part of a set, and two moments for each set.
    unsafe {
        gpu.launch(&kernels.norm_sums, each_part(&by), sums)?;
        gpu.launch(&kernels.norm_by_sums, each_part(&by), arguments)
    }
}

/// Launches the backward pass of a normalisation.
///
/// # Safety
/// `at` must satisfy [`BackwardArrays`] for this layer, and `room` must hold the result of its forward pass.
pub(super) unsafe fn backward(gpu: &Gpu, norm: &Norm, room: &NormRoom, at: BackwardArrays) -> Result<(), GpuError> {
    let by = sets(norm, at.samples);
    let gains = at.weights.plus(norm.gain.start);
    let (dgains, dbiases) = (at.gradient.plus(norm.gain.start), at.gradient.plus(norm.bias.start));
    let moments = room.moments.at();
    let sums = NormBackSums {
        dy: at.dy,
        y: at.y,
        x: at.x,
        by,
        moments,
        gains,
        found: room.found.at(),
    };
    let back = NormBack {
        dy: at.dy,
        y: at.y,
        x: at.x,
        by,
        moments,
        gains,
        found: room.found.at(),
        wanted: u32::from(at.dx.is_some()),
        dx: at.dx.unwrap_or(moments),
        dgains,
        dbiases,
    };
    // SAFETY: as the caller has promised; without `dx`, the kernel does not write to its placeholder.
    unsafe {
        gpu.launch(&gpu.kernels.norm_back_sums, each_part(&by), sums)?;
        gpu.launch(&gpu.kernels.norm_back, each_part(&by), back)?;
        if norm.sets == Sets::Channels {
            return Ok(());
        }
        let gains_back = NormGainsBack {
            dy: at.dy,
            y: at.y,
            x: at.x,
            by,
            moments,
            dgains,
            dbiases,
        };
        gpu.launch(
            &gpu.kernels.norm_gains_back,
            Grid::row(norm.gain.len(), THREADS),
            gains_back,
        )
    }
}
