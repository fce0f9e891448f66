//! Where a network goes on elsewhere: gradients that have come back from there, in place of a loss.

use std::cell::Cell;
use std::rc::Rc;

use dfdx::prelude::*;

use super::tensor::gradient_of;
use super::{OpError, Pass, Rows};
use crate::model::tape::{Forward, Neighbours, Operation};

/// The gradients of a loss at what has left this part of a network.
#[derive(Clone)]
pub struct Seed {
    /// One for each number that has left.
    output_gradients: Rc<[f32]>,
    /// The mean loss that they are of.
    loss: f32,
    /// Where the flat gradient is written. It is lent to the tape when the way back begins: between there and back many
    /// micro-batches of a minibatch may be under way, and only one of them writes.
    memory: Rc<Cell<Vec<f32>>>,
}

impl Seed {
    /// Gradients of a loss, and memory for the flat gradient.
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
