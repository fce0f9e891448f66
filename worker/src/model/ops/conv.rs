//! Convolution on the CPU: unfolding (im2col) and a matrix product, sample by sample.
//!
//! An unfolded image has one column for each position of the kernel, with the numbers under it; kernels times columns
//! are the output's planes. The columns of one sample stay in the second-level cache, so unfolding again in the
//! backward pass costs less than storing them.

use std::mem::MaybeUninit;
use std::ops::Range;

use dfdx::prelude::*;

use super::matmul::{Matrix, WriteMode, multiply, multiply_fresh};
use super::tensor::{gradient_of, take_gradient};
use super::{OpError, Parameters, Pass, Rows, bias_relu, exact, from_rows, values};
use crate::machine::parallel::{Threads, map_parts};
use crate::model::program::{Conv, Geometry, InputGradient};

impl Geometry {
    /// Returns the positions of a convolution kernel, counted along one side of the image, at which the kernel's row or
    /// column number `offset` lies on the image and not on its padding. The kernel has `count` positions along this
    /// side, and the image is `side` numbers long.
    fn inside(&self, offset: usize, side: usize, count: usize) -> Range<usize> {
        let first = self.pad.saturating_sub(offset).div_ceil(self.stride);
        let end = (side + self.pad)
            .saturating_sub(offset)
            .div_ceil(self.stride)
            .min(count);
        first.min(end)..end
    }

    /// Calls `visit(at, from, len)` for every run of numbers of the unfolded image (im2col): `len` numbers at index
    /// `at` of the columns, taken from index `from` of the image in steps of the stride. Positions in the padding are
    /// not visited.
    #[inline(always)]
    fn for_each_run(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let (rows, columns) = (self.rows(), self.columns());
        let mut row_of_columns = 0;
        for channel in 0..self.channels {
            for down in 0..self.kernel {
                let inside_rows = self.inside(down, self.height, rows);
                for right in 0..self.kernel {
                    let inside = self.inside(right, self.width, columns);
                    // A kernel larger than the image has rows and columns that always lie in the padding.
                    let visited = if inside.is_empty() { 0..0 } else { inside_rows.clone() };
                    for row in visited {
                        let y = row * self.stride + down - self.pad;
                        let x = inside.start * self.stride + right - self.pad;
                        visit(
                            row_of_columns + row * columns + inside.start,
                            (channel * self.height + y) * self.width + x,
                            inside.len(),
                        );
                    }
                    row_of_columns += rows * columns;
                }
            }
        }
    }

    /// Unfolds an image (im2col) into columns, except for the zeros of the padding, which are never written.
    fn unfold(&self, image: &[f32], columns: &mut [f32]) {
        match self.stride {
            1 => self.for_each_run(|at, from, len| {
                columns[at..at + len].copy_from_slice(&image[from..from + len]);
            }),
            // In pairs the compiler vectorises the loop, which takes a quarter of the time.
            2 => self.for_each_run(|at, from, len| {
                let (pairs, last) = image[from..from + 2 * len - 1].as_chunks::<2>();
                let columns = &mut columns[at..at + len];
                for (column, [pixel, _]) in columns.iter_mut().zip(pairs) {
                    *column = *pixel;
                }
                columns[len - 1] = last[0];
            }),
            stride => self.for_each_run(|at, from, len| {
                for (column, pixel) in columns[at..at + len]
                    .iter_mut()
                    .zip(image[from..].iter().step_by(stride))
                {
                    *column = *pixel;
                }
            }),
        }
    }

    /// Unfolds an image (im2col) into `columns` and returns them. A 1×1 kernel needs no unfolding: then the image
    /// itself is returned.
    fn unfolded<'a>(&self, image: &'a [f32], columns: &'a mut [f32]) -> &'a [f32] {
        if self.is_pointwise() {
            return image;
        }
        self.unfold(image, columns);
        columns
    }

    /// Reverses the unfolding of an image (im2col) for gradients: adds every number to the pixel that it came from.
    fn fold(&self, columns: &[f32], image: &mut [f32]) {
        match self.stride {
            1 => self.for_each_run(|at, from, len| {
                for (pixel, column) in image[from..from + len].iter_mut().zip(&columns[at..at + len]) {
                    *pixel += column;
                }
            }),
            2 => self.for_each_run(|at, from, len| {
                let (pairs, last) = image[from..from + 2 * len - 1].as_chunks_mut::<2>();
                let columns = &columns[at..at + len];
                for ([pixel, _], column) in pairs.iter_mut().zip(columns) {
                    *pixel += column;
                }
                last[0] += columns[len - 1];
            }),
            stride => self.for_each_run(|at, from, len| {
                for (pixel, column) in image[from..].iter_mut().step_by(stride).zip(&columns[at..at + len]) {
                    *pixel += column;
                }
            }),
        }
    }
}

/// One thread's samples in the backward pass of a convolution.
struct ImageChunk<'a> {
    x: &'a [f32],
    y: &'a [f32],
    dy: &'a mut [f32],
    dx: &'a mut [f32],
}

impl Conv {
    /// Computes the convolution's output for a minibatch.
    pub(super) fn forward(&self, parameters: &Parameters, x: &Rows, threads: Threads) -> Result<Rows, OpError> {
        let (samples, inputs) = *x.shape();
        let geometry = self.geometry;
        assert_eq!(inputs, geometry.input_len());
        let len = samples * geometry.output_len();
        let mut out = Vec::with_capacity(len);
        let per_part = samples.div_ceil(threads.0.max(1));
        let places = out.spare_capacity_mut()[..len].chunks_mut(per_part * geometry.output_len());
        let parts: Vec<_> = values(x).chunks(per_part * geometry.input_len()).zip(places).collect();
        map_parts(parts, |(x, out)| self.forward_part(parameters, x, out));
        // SAFETY: the parts cover all `len` elements, and each part is written whole.
        unsafe { out.set_len(len) };
        from_rows(x.device(), samples, geometry.output_len(), out)
    }

    fn forward_part(&self, parameters: &Parameters, x: &[f32], out: &mut [MaybeUninit<f32>]) {
        let geometry = self.geometry;
        let (window, positions) = (geometry.window(), geometry.positions());
        let kernels = Matrix::row_major(&parameters.values()[self.weight.clone()], geometry.outputs, window);
        let bias = &parameters.values()[self.bias.clone()];
        let mut columns = vec![0.0; window * positions];
        let images = x.chunks_exact(geometry.input_len());
        for (image, planes) in images.zip(out.chunks_exact_mut(geometry.output_len())) {
            let planes = multiply_fresh(
                kernels,
                Matrix::row_major(geometry.unfolded(image, &mut columns), window, positions),
                planes,
                Threads(1),
            );
            self.add_bias(planes, bias);
        }
    }

    /// Adds each output's bias, if the convolution has biases, and applies relu, if it follows.
    fn add_bias(&self, planes: &mut [f32], bias: &[f32]) {
        if bias.is_empty() && !self.relu {
            return;
        }
        let mut bias = bias.iter();
        for plane in planes.chunks_exact_mut(self.geometry.positions()) {
            bias_relu::add_to_plane(plane, bias.next().copied().unwrap_or(0.0), self.relu);
        }
    }

    /// Computes the convolution's output with the same bits on every machine.
    pub(super) fn forward_exactly(&self, parameters: &Parameters, x: &Rows, threads: Threads) -> Result<Rows, OpError> {
        let samples = x.shape().0;
        let geometry = self.geometry;
        let (window, positions) = (geometry.window(), geometry.positions());
        let kernels = &parameters.values()[self.weight.clone()];
        let bias = &parameters.values()[self.bias.clone()];
        let mut out = vec![0.0; samples * geometry.output_len()];
        let per_part = samples.div_ceil(threads.0.max(1)).max(1);
        let images = values(x).chunks(per_part * geometry.input_len());
        let parts = images.zip(out.chunks_mut(per_part * geometry.output_len())).collect();
        map_parts(parts, |(images, out): (&[f32], &mut [f32])| {
            let mut columns = vec![0.0; window * positions];
            let images = images.chunks_exact(geometry.input_len());
            for (image, planes) in images.zip(out.chunks_exact_mut(geometry.output_len())) {
                exact::add_product(kernels, geometry.unfolded(image, &mut columns), positions, planes);
                self.add_bias(planes, bias);
            }
        });
        from_rows(x.device(), samples, geometry.output_len(), out)
    }

    /// Runs the convolution's backward pass: writes the gradient of the weights, and adds to that of the input.
    pub(super) fn backward(
        &self,
        Pass {
            parameters, backward, ..
        }: &Pass,
        x: &Rows,
        y: &Rows,
        gradients: &mut Gradients<f32, Cpu>,
        threads: Threads,
    ) -> Result<(), OpError> {
        let geometry = self.geometry;
        let samples = x.shape().0;
        let per_part = samples.div_ceil(threads.0.max(1));
        let mut dy = take_gradient(gradients, y)?;
        let mut no_gradient = Vec::new();
        let dx = match self.input_gradient {
            InputGradient::Needed => gradient_of(gradients, x)?,
            InputGradient::NotNeeded => &mut no_gradient,
        };
        let mut dx_parts = dx.chunks_mut(per_part * geometry.input_len());
        let outputs = per_part * geometry.output_len();
        let parts: Vec<_> = values(x)
            .chunks(per_part * geometry.input_len())
            .zip(values(y).chunks(outputs))
            .zip(dy.chunks_mut(outputs))
            .map(|((x, y), dy)| {
                let dx = dx_parts.next().unwrap_or_default();
                ImageChunk { x, y, dy, dx }
            })
            .collect();
        let weights = self.weight.len();
        // Each part sums up the gradient of its own samples: weights first, then biases.
        let sums = map_parts(parts, |mut part| self.backward_part(parameters, &mut part));
        let flat = parameters.gradient(gradients)?;
        if backward.written() == WriteMode::Overwrite {
            flat[self.weight.clone()].fill(0.0);
            flat[self.bias.clone()].fill(0.0);
        }
        for sum in sums {
            let (weight, bias) = sum.split_at(weights);
            flat[self.weight.clone()]
                .iter_mut()
                .zip(weight)
                .for_each(|(total, part)| *total += part);
            flat[self.bias.clone()]
                .iter_mut()
                .zip(bias)
                .for_each(|(total, part)| *total += part);
        }
        Ok(())
    }

    fn backward_part(&self, parameters: &Parameters, part: &mut ImageChunk<'_>) -> Vec<f32> {
        let geometry = self.geometry;
        let (window, positions) = (geometry.window(), geometry.positions());
        let kernels = Matrix::row_major(&parameters.values()[self.weight.clone()], geometry.outputs, window);
        let mut sums = vec![0.0; self.weight.len() + self.bias.len()];
        let (dweight, dbias) = sums.split_at_mut(self.weight.len());
        let mut columns = vec![0.0; window * positions];
        if self.relu {
            bias_relu::cut_gradient(part.dy, part.y);
        }
        let mut dx = part.dx.chunks_exact_mut(geometry.input_len());
        let images = part.x.chunks_exact(geometry.input_len());
        for (image, dplanes) in images.zip(part.dy.chunks_exact(geometry.output_len())) {
            for (dbias, plane) in dbias.iter_mut().zip(dplanes.chunks_exact(positions)) {
                *dbias += bias_relu::sum_plane(plane);
            }
            let dplanes = Matrix::row_major(dplanes, geometry.outputs, positions);
            let unfolded = Matrix::row_major(geometry.unfolded(image, &mut columns), window, positions);
            multiply(dplanes, unfolded.transposed(), dweight, WriteMode::Add, Threads(1));
            if let Some(dimage) = dx.next() {
                multiply(
                    kernels.transposed(),
                    dplanes,
                    &mut columns,
                    WriteMode::Overwrite,
                    Threads(1),
                );
                geometry.fold(&columns, dimage);
                // The product has overwritten the padding's zeros, on which unfolding relies.
                if geometry.pad > 0 {
                    columns.fill(0.0);
                }
            }
        }
        sums
    }
}
