//! The start of a backward pass in a pipeline stage without a loss: output gradients from the next stage.

use std::cell::Cell;
use std::rc::Rc;

use dfdx::prelude::*;

use super::tensor::gradient_of;
use super::{OpError, Pass, Rows};
use crate::model::tape::{Forward, Neighbours, Operation};

/// Gradients of the loss at a pipeline stage's outputs, received from the next stage.
#[derive(Clone)]
pub struct Seed {
    /// Gradient of the loss at each number of the stage's output.
    output_gradients: Rc<[f32]>,
    /// Mean loss of the micro-batch, as the last pipeline stage has computed it.
    loss: f32,
    /// Memory for the gradient of all weights. It is lent to the tape when the backward pass begins: several
    /// micro-batches of a minibatch may be in flight, and only one of them writes at a time.
    memory: Rc<Cell<Vec<f32>>>,
}

impl Seed {
    /// Makes the start of a pipeline stage's backward pass: the output gradients and the mean loss that the next stage
    /// has sent. `memory` takes the flat gradient (of all weights in one array).
    #[must_use]
    pub fn new(output_gradients: Vec<f32>, loss: f32, memory: Vec<f32>) -> Self {
        Self {
            output_gradients: output_gradients.into(),
            loss,
            memory: Rc::new(Cell::new(memory)),
        }
    }
}

impl Operation<()> for Seed {
    type Unit = f32;
    type Pass = Pass;
    type Saved = ();
    type Error = OpError;

    fn forward(&self, _: &Pass, outputs: &Rows, _: bool) -> Forward<Self, ()> {
        Ok((outputs.device().try_tensor_from_vec(vec![self.loss], ())?, ()))
    }

    fn backward(
        &self,
        pass: &Pass,
        Neighbours { x: outputs, .. }: Neighbours<'_, f32, ()>,
        (): (),
        gradients: &mut Gradients<f32, Cpu>,
    ) -> Result<(), OpError> {
        *pass.parameters.gradient(gradients)? = self.memory.take();
        gradient_of(gradients, outputs)?.copy_from_slice(&self.output_gradients);
        Ok(())
    }
}
