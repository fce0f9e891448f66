//! Pooling: the largest or the mean of every square of an image.

use dfdx::prelude::*;

use super::tensor::{gradient_of, take_gradient};
use super::{Activations, OpError, from_rows, values};
use crate::program::Pool;

impl Pool {
    /// Calls `take` with the position of the top left corner of every square of a minibatch, in the output's order.
    fn for_each_square(&self, samples: usize, mut take: impl FnMut(usize)) {
        for plane in 0..samples * self.channels {
            for row in 0..self.rows() {
                let start = (plane * self.height + row * self.size) * self.width;
                for column in 0..self.columns() {
                    take(start + column * self.size);
                }
            }
        }
    }

    /// The largest value of each square.
    pub fn max<T: Tape<f32, Cpu>>(self, x: Activations<T>) -> Result<Activations<T>, OpError> {
        let (x, mut tape) = x.split_tape();
        let samples = x.shape().0;
        let input = values(&x);
        assert!(
            u32::try_from(input.len()).is_ok(),
            "a minibatch of more than 2^32 numbers"
        );
        let mut out = Vec::with_capacity(samples * self.output_len());
        // Where each largest value was found: the gradient goes there and nowhere else.
        let mut winners: Vec<u32> = Vec::with_capacity(if T::OWNS_TAPE { out.capacity() } else { 0 });
        self.for_each_square(samples, |corner| {
            let (mut best, mut winner) = (input[corner], corner);
            for down in 0..self.size {
                let start = corner + down * self.width;
                for (right, &value) in input[start..start + self.size].iter().enumerate() {
                    if value > best {
                        (best, winner) = (value, start + right);
                    }
                }
            }
            out.push(best);
            if T::OWNS_TAPE {
                winners.push(winner as u32);
            }
        });
        let y = from_rows(x.device(), samples, self.output_len(), out)?;
        let output = y.clone();
        tape.add_backward_op(move |gradients| {
            let dy = take_gradient(gradients, &output)?;
            let dx = gradient_of(gradients, &x)?;
            for (&winner, dy) in winners.iter().zip(&dy) {
                dx[winner as usize] += dy;
            }
            Ok(())
        });
        Ok(y.put_tape(tape))
    }

    /// The mean of each square.
    pub fn mean<T: Tape<f32, Cpu>>(self, x: Activations<T>) -> Result<Activations<T>, OpError> {
        let (x, mut tape) = x.split_tape();
        let samples = x.shape().0;
        let input = values(&x);
        let share = 1.0 / (self.size * self.size) as f32;
        let mut out = Vec::with_capacity(samples * self.output_len());
        self.for_each_square(samples, |corner| {
            let rows = (0..self.size).map(|down| corner + down * self.width);
            let sum: f32 = rows.flat_map(|start| &input[start..start + self.size]).sum();
            out.push(sum * share);
        });
        let y = from_rows(x.device(), samples, self.output_len(), out)?;
        let output = y.clone();
        tape.add_backward_op(move |gradients| {
            let dy = take_gradient(gradients, &output)?;
            let dx = gradient_of(gradients, &x)?;
            let mut dy = dy.iter();
            self.for_each_square(samples, |corner| {
                let part = dy.next().map_or(0.0, |dy| dy * share);
                for down in 0..self.size {
                    let start = corner + down * self.width;
                    dx[start..start + self.size].iter_mut().for_each(|dx| *dx += part);
                }
            });
            Ok(())
        });
        Ok(y.put_tape(tape))
    }
}
