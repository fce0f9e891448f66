//! Normalisation on the CPU: shifts each set of numbers to mean 0 and scales it to variance 1.
//!
//! Sets are processed in a fixed order, and sums use sixteen lanes on any processor: so the same numbers lead to the
//! same bits on every machine.

use std::borrow::Cow;
use std::ops::Range;

use dfdx::prelude::*;
use multiversion::multiversion;

use super::matmul::WriteMode;
use super::tensor::{gradient_of, take_gradient};
use super::{OpError, Parameters, Pass, Rows, bias_relu, exact, from_rows, values};
use crate::model::program::{Norm, Sets};

/// Number of partial sums that run in parallel when numbers are added up.
const LANES: usize = 16;

/// Mean and scaling factor of each set of numbers that is normalised together.
#[derive(Clone, Debug, Default)]
pub struct Moments {
    mean: Vec<f32>,
    factor: Vec<f32>,
}

impl Moments {
    /// Makes the moments (mean and scaling factor) of normalised sets from given means and variances.
    pub(super) fn given(means: &[f32], variances: &[f32]) -> Self {
        Self {
            mean: means.to_vec(),
            factor: variances.iter().map(|&variance| factor(f64::from(variance))).collect(),
        }
    }
}

impl Moments {
    /// Makes the moments (mean and scaling factor) of normalised sets from measured means and variances, and returns
    /// the variances, too.
    fn measured(mean: Vec<f32>, variance: Vec<f64>) -> (Self, Vec<f64>) {
        let factor = variance.iter().map(|&variance| factor(variance)).collect();
        (Self { mean, factor }, variance)
    }

    /// Returns the mean of each set of numbers that are normalised together.
    pub(super) fn means(&self) -> &[f32] {
        &self.mean
    }

    /// Returns the mean and the scaling factor of one of the sets of numbers that are normalised together; `set` is its
    /// index.
    fn of(&self, set: usize) -> (f32, f32) {
        (self.mean[set], self.factor[set])
    }
}

/// Returns the factor that scales numbers with this variance to variance 1.
fn factor(variance: f64) -> f32 {
    (1.0 / (variance + f64::from(Norm::EPSILON)).sqrt()) as f32
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn sum(values: &[f32]) -> f64 {
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for chunk in whole {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    lanes.iter().chain(rest).map(|&value| f64::from(value)).sum()
}

/// Sums up the squared distances of numbers from their mean.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn squares(values: &[f32], mean: f32) -> f64 {
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for chunk in whole {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += (value - mean) * (value - mean);
        }
    }
    let rest = rest.iter().map(|value| f64::from((value - mean) * (value - mean)));
    lanes.iter().map(|&lane| f64::from(lane)).chain(rest).sum()
}

/// Returns two sums that the backward pass of a normalisation needs: of gradients, and of gradients times their
/// numbers' distances from the mean.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn gradient_sums(dy: &[f32], x: &[f32], mean: f32) -> (f64, f64) {
    let (mut plain, mut leaning) = ([0.0f32; LANES], [0.0f32; LANES]);
    let ((dy, dy_rest), (x, x_rest)) = (dy.as_chunks::<LANES>(), x.as_chunks::<LANES>());
    for (dy, x) in dy.iter().zip(x) {
        for lane in 0..LANES {
            plain[lane] += dy[lane];
            leaning[lane] += dy[lane] * (x[lane] - mean);
        }
    }
    let mut sums = (0.0, 0.0);
    for (plain, leaning) in plain.iter().zip(leaning) {
        sums.0 += f64::from(*plain);
        sums.1 += f64::from(leaning);
    }
    for (dy, x) in dy_rest.iter().zip(x_rest) {
        sums.0 += f64::from(*dy);
        sums.1 += f64::from(dy * (x - mean));
    }
    sums
}

/// Normalises numbers: `y = (x − mean) · scale + bias`, optionally followed by relu.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn normalise(x: &[f32], mean: f32, scale: f32, bias: f32, relu: bool, y: &mut [f32]) {
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    for (y, x) in y.iter_mut().zip(x) {
        *y = ((x - mean) * scale + bias).max(floor);
    }
}

/// Backward pass of the normalisation for some numbers: `dx += dy · scale − plain − (x − mean) · leaning`, where
/// `plain` and `leaning` come from sums over the normalised set.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn normalise_back(dy: &[f32], x: &[f32], mean: f32, [scale, plain, leaning]: [f32; 3], dx: &mut [f32]) {
    for ((dx, dy), x) in dx.iter_mut().zip(dy).zip(x) {
        *dx += dy * scale - plain - (x - mean) * leaning;
    }
}

/// Normalises numbers of which each has its own gain and bias: `y = (x − mean) · factor · gain + bias`, optionally with
/// relu.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn normalise_each(x: &[f32], mean: f32, factor: f32, gain: &[f32], bias: &[f32], relu: bool, y: &mut [f32]) {
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    for (((y, x), gain), bias) in y.iter_mut().zip(x).zip(gain).zip(bias) {
        *y = ((x - mean) * (factor * gain) + bias).max(floor);
    }
}

/// Adds to the gradients of gains and biases, where each number has its own, and multiplies the output gradients by the
/// gains.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn gradient_sums_each(
    dy: &mut [f32],
    x: &[f32],
    mean: f32,
    factor: f32,
    gain: &[f32],
    dgain: &mut [f64],
    dbias: &mut [f64],
) {
    for ((((dy, x), gain), dgain), dbias) in dy.iter_mut().zip(x).zip(gain).zip(dgain).zip(dbias) {
        *dbias += f64::from(*dy);
        *dgain += f64::from(*dy * (x - mean) * factor);
        *dy *= gain;
    }
}

/// Dimensions of a minibatch as the normalisation sees them: samples, channels per sample, and numbers per plane. All
/// numbers of a plane (one channel of one sample) have the same gain.
#[derive(Clone, Copy)]
struct View {
    samples: usize,
    channels: usize,
    plane: usize,
    /// Number of sets of numbers normalised together in each sample; `None` if each set extends over all samples.
    groups: Option<usize>,
}

impl View {
    /// Returns for each plane (one channel of one sample) the indices of its numbers, the number of the set that it is
    /// normalised with, and its channel.
    fn planes(self) -> impl Iterator<Item = (Range<usize>, usize, usize)> {
        let Self {
            samples,
            channels,
            plane,
            groups,
        } = self;
        (0..samples * channels).map(move |number| {
            let (sample, channel) = (number / channels, number % channels);
            let set = groups.map_or(channel, |groups| sample * groups + channel / (channels / groups));
            (number * plane..(number + 1) * plane, set, channel)
        })
    }

    fn sets(self) -> usize {
        self.groups.map_or(self.channels, |groups| self.samples * groups)
    }

    /// Returns the number of values that are normalised together as one set, at least 1.
    fn set_len(self) -> f64 {
        ((self.samples * self.channels * self.plane) as f64 / self.sets().max(1) as f64).max(1.0)
    }

    /// Measures the mean and scaling factor of each set of numbers that are normalised together, and returns the
    /// variances, too.
    fn measure(self, x: &[f32]) -> (Moments, Vec<f64>) {
        let len = self.set_len();
        if self.groups.is_some() {
            // A set is one contiguous run.
            let measured = x.chunks_exact(len as usize).map(|set| {
                let mean = (sum(set) / len) as f32;
                (mean, squares(set, mean) / len)
            });
            let (mean, variance) = measured.unzip();
            return Moments::measured(mean, variance);
        }
        let mut totals = vec![0.0; self.sets()];
        for (run, set, _) in self.planes() {
            totals[set] += sum(&x[run]);
        }
        let mean: Vec<f32> = totals.iter().map(|total| (total / len) as f32).collect();
        totals.fill(0.0);
        for (run, set, _) in self.planes() {
            totals[set] += squares(&x[run], mean[set]);
        }
        Moments::measured(mean, totals.iter().map(|total| total / len).collect())
    }

    /// Returns, for each set of numbers that are normalised together, the indices of its numbers and the indices of
    /// their gains; `None` unless each number has its own gain.
    fn runs(self) -> Option<impl Iterator<Item = (Range<usize>, Range<usize>)>> {
        let groups = self.groups.filter(|_| self.plane == 1)?;
        let len = self.channels / groups;
        Some((0..self.sets()).map(move |set| {
            let first = set % groups * len;
            (set * len..(set + 1) * len, first..first + len)
        }))
    }

    fn forward(self, x: &[f32], moments: &Moments, gain: &[f32], bias: &[f32], relu: bool) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        if let Some(runs) = self.runs() {
            for (set, (run, own)) in runs.enumerate() {
                let (mean, factor) = moments.of(set);
                let (gain, bias) = (&gain[own.clone()], &bias[own]);
                normalise_each(&x[run.clone()], mean, factor, gain, bias, relu, &mut out[run]);
            }
            return out;
        }
        for (run, set, channel) in self.planes() {
            let scale = moments.factor[set] * gain[channel];
            normalise(
                &x[run.clone()],
                moments.mean[set],
                scale,
                bias[channel],
                relu,
                &mut out[run],
            );
        }
        out
    }

    /// Backward pass of a normalisation: adds to the input's gradient, and returns the gradients of gains and biases.
    fn backward(
        self,
        x: &[f32],
        dy: &mut [f32],
        moments: &Moments,
        gain: &[f32],
        dx: &mut [f32],
    ) -> (Vec<f64>, Vec<f64>) {
        let (mut dgain, mut dbias) = (vec![0.0; gain.len()], vec![0.0; gain.len()]);
        let len = self.set_len();
        let back = |set: usize, (plain, leaning): (f64, f64), gain: f32| {
            let factor = moments.factor[set];
            let wide = f64::from(factor);
            let (plain, leaning) = (plain / len * wide, leaning / len * wide.powi(3));
            [factor * gain, plain as f32, leaning as f32]
        };
        if let Some(runs) = self.runs() {
            for (set, (run, own)) in runs.enumerate() {
                let (dy, x) = (&mut dy[run.clone()], &x[run.clone()]);
                let sums = (&mut dgain[own.clone()], &mut dbias[own.clone()]);
                let (mean, factor) = moments.of(set);
                gradient_sums_each(dy, x, mean, factor, &gain[own], sums.0, sums.1);
                normalise_back(dy, x, mean, back(set, gradient_sums(dy, x, mean), 1.0), &mut dx[run]);
            }
            return (dgain, dbias);
        }
        // Sums over each set of its gradients, multiplied by their gains.
        let mut totals = vec![(0.0, 0.0); self.sets()];
        for (run, set, channel) in self.planes() {
            let (plain, leaning) = gradient_sums(&dy[run.clone()], &x[run], moments.mean[set]);
            dbias[channel] += plain;
            dgain[channel] += leaning * f64::from(moments.factor[set]);
            totals[set].0 += plain * f64::from(gain[channel]);
            totals[set].1 += leaning * f64::from(gain[channel]);
        }
        for (run, set, channel) in self.planes() {
            let numbers = back(set, totals[set], gain[channel]);
            normalise_back(
                &dy[run.clone()],
                &x[run.clone()],
                moments.mean[set],
                numbers,
                &mut dx[run],
            );
        }
        (dgain, dbias)
    }
}

impl Norm {
    /// Returns a minibatch's dimensions for normalisation, and its numbers in the order of these dimensions. Vectors
    /// are transposed if sets extend over all samples, so that each set is contiguous. A number with its own gain
    /// counts as a plane.
    fn view<'a>(&self, x: &'a [f32], samples: usize) -> (View, Cow<'a, [f32]>) {
        let view = |samples, channels, plane, groups| View {
            samples,
            channels,
            plane,
            groups,
        };
        match self.sets {
            Sets::Channels if self.plane == 1 => (
                view(1, self.channels, samples, None),
                Cow::Owned(exact::turned(x, samples, self.channels)),
            ),
            Sets::Channels => (view(samples, self.channels, self.plane, None), Cow::Borrowed(x)),
            Sets::Groups(groups) => (view(samples, self.channels, self.plane, Some(groups)), Cow::Borrowed(x)),
            Sets::Samples => (view(samples, self.channels * self.plane, 1, Some(1)), Cow::Borrowed(x)),
        }
    }

    fn is_turned(&self) -> bool {
        self.sets == Sets::Channels && self.plane == 1
    }

    /// Measures the mean and scaling factor of each set of a minibatch's numbers that are normalised together, and
    /// returns the variances, too.
    pub(super) fn measure(&self, x: &Rows) -> (Moments, Vec<f64>) {
        let (view, x) = self.view(values(x), x.shape().0);
        view.measure(&x)
    }

    /// Normalises a minibatch by the given means and scaling factors.
    pub(super) fn forward(&self, parameters: &Parameters, x: &Rows, moments: &Moments) -> Result<Rows, OpError> {
        let (samples, features) = *x.shape();
        let weights = parameters.values();
        let (gain, bias) = (&weights[self.gain.clone()], &weights[self.bias.clone()]);
        let (view, input) = self.view(values(x), samples);
        let mut out = view.forward(&input, moments, gain, bias, self.relu);
        if self.is_turned() {
            out = exact::turned(&out, features, samples);
        }
        from_rows(x.device(), samples, features, out)
    }

    /// Runs the normalisation's backward pass: writes the gradients of gains and biases, and adds to that of the input.
    pub(super) fn backward(
        &self,
        Pass {
            parameters, backward, ..
        }: &Pass,
        x: &Rows,
        y: &Rows,
        moments: &Moments,
        gradients: &mut Gradients<f32, Cpu>,
    ) -> Result<(), OpError> {
        let (samples, features) = *x.shape();
        let mut dy = take_gradient(gradients, y)?;
        if self.relu {
            bias_relu::cut_gradient(&mut dy, values(y));
        }
        let gain = &parameters.values()[self.gain.clone()];
        let (view, input) = self.view(values(x), samples);
        let dx = gradient_of(gradients, x)?;
        let (dgain, dbias) = if self.is_turned() {
            let mut turned = vec![0.0; dy.len()];
            let mut dy = exact::turned(&dy, samples, features);
            let sums = view.backward(&input, &mut dy, moments, gain, &mut turned);
            for (dx, turned) in dx.iter_mut().zip(exact::turned(&turned, features, samples)) {
                *dx += turned;
            }
            sums
        } else {
            view.backward(&input, &mut dy, moments, gain, dx)
        };
        let flat = parameters.gradient(gradients)?;
        for (range, sums) in [(&self.gain, dgain), (&self.bias, dbias)] {
            for (gradient, sum) in flat[range.clone()].iter_mut().zip(sums) {
                *gradient = match backward.written() {
                    WriteMode::Overwrite => sum as f32,
                    WriteMode::Add => *gradient + sum as f32,
                };
            }
        }
        Ok(())
    }
}
