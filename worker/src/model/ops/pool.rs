//! Pooling on the CPU: the largest or the mean of each window of an image.

use dfdx::prelude::*;

use super::tensor::{gradient_of, take_gradient};
use super::{OpError, Rows, from_rows, values};
use crate::model::program::Pool;

impl Pool {
    /// Calls `take` with the index of the top left corner of every pooling window of a minibatch, in the output's
    /// order.
    fn for_each_window(&self, samples: usize, mut take: impl FnMut(usize)) {
        for plane in 0..samples * self.channels {
            for row in 0..self.rows() {
                let start = (plane * self.height + row * self.window.0) * self.width;
                for column in 0..self.columns() {
                    take(start + column * self.window.1);
                }
            }
        }
    }

    /// Computes the largest value of each pooling window and, if `taped`, that value's index.
    pub(super) fn max(self, x: &Rows, taped: bool) -> Result<(Rows, Vec<u32>), OpError> {
        let samples = x.shape().0;
        let input = values(x);
        assert!(
            u32::try_from(input.len()).is_ok(),
            "the minibatch has more than 2^32 - 1 values"
        );
        let mut out = Vec::with_capacity(samples * self.output_len());
        let mut winners: Vec<u32> = Vec::with_capacity(if taped { out.capacity() } else { 0 });
        self.for_each_window(samples, |corner| {
            let (mut best, mut winner) = (input[corner], corner);
            for down in 0..self.window.0 {
                let start = corner + down * self.width;
                for (right, &value) in input[start..start + self.window.1].iter().enumerate() {
                    if value > best {
                        (best, winner) = (value, start + right);
                    }
                }
            }
            out.push(best);
            if taped {
                winners.push(winner as u32);
            }
        });
        let y = from_rows(x.device(), samples, self.output_len(), out)?;
        Ok((y, winners))
    }

    /// Computes the mean of each pooling window.
    pub(super) fn mean(self, x: &Rows) -> Result<Rows, OpError> {
        let samples = x.shape().0;
        let input = values(x);
        let mut out = Vec::with_capacity(samples * self.output_len());
        self.for_each_window(samples, |corner| {
            let rows = (0..self.window.0).map(|down| corner + down * self.width);
            let sum: f32 = rows.flat_map(|start| &input[start..start + self.window.1]).sum();
            out.push(sum * self.share());
        });
        from_rows(x.device(), samples, self.output_len(), out)
    }

    /// Runs the backward pass of mean pooling: every number of a window gets an equal part of the gradient.
    pub(super) fn mean_backward(self, x: &Rows, y: &Rows, gradients: &mut Gradients<f32, Cpu>) -> Result<(), OpError> {
        let dy = take_gradient(gradients, y)?;
        let dx = gradient_of(gradients, x)?;
        let mut dy = dy.iter();
        self.for_each_window(x.shape().0, |corner| {
            let part = dy.next().map_or(0.0, |dy| dy * self.share());
            for down in 0..self.window.0 {
                let start = corner + down * self.width;
                dx[start..start + self.window.1].iter_mut().for_each(|dx| *dx += part);
            }
        });
        Ok(())
    }

    fn share(self) -> f32 {
        1.0 / (self.window.0 * self.window.1) as f32
    }
}

/// Runs the backward pass of max pooling: the gradient goes to the largest value of each window only.
pub(super) fn max_backward(
    winners: &[u32],
    x: &Rows,
    y: &Rows,
    gradients: &mut Gradients<f32, Cpu>,
) -> Result<(), OpError> {
    let dy = take_gradient(gradients, y)?;
    let dx = gradient_of(gradients, x)?;
    for (&winner, dy) in winners.iter().zip(&dy) {
        dx[winner as usize] += dy;
    }
    Ok(())
}
