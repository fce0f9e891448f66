//! The dense layer on the CPU: `y = x Wᵀ + b`, optionally followed by relu.

use dfdx::prelude::*;

use super::matmul::{Matrix, WriteMode, multiply, product};
use super::tensor::{gradient_of, take_gradient};
use super::{DeferredWeightGradient, OpError, Parameters, Pass, Rows, bias_relu, exact, from_rows, values};
use crate::machine::parallel::Threads;
use crate::model::program::{Dense, InputGradient};

/// From this many outputs on, a dense layer computes its product transposed and then transposes the result. The kernel
/// then reads the weights as stored; otherwise it would rearrange all of them first, which costs more than transposing
/// the output.
const OUTPUTS_FOR_TRANSPOSING: usize = 32;

impl Dense {
    /// Computes the dense layer's output for a minibatch.
    pub(super) fn forward(&self, parameters: &Parameters, x: &Rows, threads: Threads) -> Result<Rows, OpError> {
        let (samples, inputs) = *x.shape();
        assert_eq!(inputs, self.inputs);
        let weights = parameters.values();
        let weight = Matrix::row_major(&weights[self.weight.clone()], self.outputs, self.inputs);
        let rows = Matrix::row_major(values(x), samples, inputs);
        let bias = &weights[self.bias.clone()];
        let out = if self.outputs < OUTPUTS_FOR_TRANSPOSING {
            let mut out = product(rows, weight.transposed(), threads);
            bias_relu::add_to_rows(&mut out, bias, self.relu);
            out
        } else {
            let columns = product(weight, rows.transposed(), threads);
            bias_relu::transpose_and_add(&columns, samples, bias, self.relu)
        };
        from_rows(x.device(), samples, self.outputs, out)
    }

    /// Computes the dense layer's output with the same bits on every machine.
    pub(super) fn forward_exactly(&self, parameters: &Parameters, x: &Rows) -> Result<Rows, OpError> {
        let samples = x.shape().0;
        let weights = parameters.values();
        let columns = exact::turned(values(x), samples, self.inputs);
        let mut out = vec![0.0; self.outputs * samples];
        exact::add_product(&weights[self.weight.clone()], &columns, samples, &mut out);
        let out = bias_relu::transpose_and_add(&out, samples, &weights[self.bias.clone()], self.relu);
        from_rows(x.device(), samples, self.outputs, out)
    }

    /// Runs the dense layer's backward pass: adds to the gradient of the input, and writes or defers that of the
    /// weights.
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
        let samples = x.shape().0;
        let mut dy = take_gradient(gradients, y)?;
        if self.relu {
            bias_relu::cut_gradient(&mut dy, values(y));
        }
        if self.input_gradient == InputGradient::Needed {
            let weight = Matrix::row_major(&parameters.values()[self.weight.clone()], self.outputs, self.inputs);
            let dy_rows = Matrix::row_major(&dy, samples, self.outputs);
            multiply(dy_rows, weight, gradient_of(gradients, x)?, WriteMode::Add, threads);
        }
        let deferred = DeferredWeightGradient {
            dense: self.clone(),
            x: x.clone(),
            dy,
            threads,
        };
        if let Some(deferred) = backward.defer(deferred) {
            deferred.add_to(parameters.gradient(gradients)?, backward.written());
        }
        Ok(())
    }
}
