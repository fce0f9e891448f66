//! The one place that tapes: operations are put on dfdx's tape here, and dfdx runs their way back.
//!
//! dfdx owns the shapes of tensors, their identities, the tape and the slots of their gradients. What a tensor stores is
//! up to its device: on the CPU the numbers themselves (`f32`), on a GPU the address of the array that holds them. So one
//! network serves both, and a tape is the same whatever computes.

use std::cell::Cell;
use std::rc::Rc;

use dfdx::prelude::*;

/// What can go wrong with dfdx's own tensors: memory.
pub type OpError = CpuError;
/// A minibatch of activations, one row per sample.
pub type Activations<E, T = NoneTape> = Tensor<(usize, usize), E, Cpu, T>;

/// What came of an operation: its output, and what its way back needs.
pub type Forward<O, To = (usize, usize)> =
    Result<(Tensor<To, <O as Operation<To>>::Unit, Cpu>, <O as Operation<To>>::Saved), <O as Operation<To>>::Error>;

/// An operation on a minibatch, as some device carries it out: a layer, whose output is a minibatch again, or a loss.
pub trait Operation<To: Shape = (usize, usize)>: Clone + 'static {
    /// What its tensors store.
    type Unit: Unit;
    /// What all operations of one pass through a network are computed with: weights, and what is drawn at random.
    type Pass: Clone + 'static;
    /// What its way back needs beside its input and its output.
    type Saved: 'static;
    /// What can go wrong.
    type Error: From<OpError> + 'static;

    /// Computes the output, and what the way back needs if there will be one.
    fn forward(&self, pass: &Self::Pass, x: &Activations<Self::Unit>, taped: bool) -> Forward<Self, To>;

    /// Takes the gradient of the output from its slot, writes that of the weights, and hands on that of the input.
    fn backward(
        &self,
        pass: &Self::Pass,
        around: Neighbours<'_, Self::Unit, To>,
        kept: Self::Saved,
        gradients: &mut Gradients<Self::Unit, Cpu>,
    ) -> Result<(), Self::Error>;
}

/// An operation that a network is made of.
pub trait Layer: Operation {
    /// How its device lets two ways part and come together.
    type Junction: Junction<Unit = <Self as Operation>::Unit, Pass = <Self as Operation>::Pass, Error = <Self as Operation>::Error>;
}

/// What goes two ways: through a block's layers, and beside them.
pub type Branches<E> = [Activations<E>; 2];

/// Where a block begins and where it ends.
pub trait Junction: Clone + 'static {
    /// What its tensors store.
    type Unit: Unit;
    /// What a pass is computed with.
    type Pass: Clone + 'static;
    /// What can go wrong.
    type Error: From<OpError> + 'static;

    /// The same numbers for both ways.
    fn part(&self, x: &Activations<Self::Unit>) -> Result<Branches<Self::Unit>, Self::Error>;

    /// Hands on the gradients that have come back both ways.
    fn part_back(
        &self,
        pass: &Self::Pass,
        x: &Activations<Self::Unit>,
        ways: &Branches<Self::Unit>,
        gradients: &mut Gradients<Self::Unit, Cpu>,
    ) -> Result<(), Self::Error>;

    /// What has come both ways, added up.
    fn join(&self, pass: &Self::Pass, ways: &Branches<Self::Unit>) -> Result<Activations<Self::Unit>, Self::Error>;

    /// Hands the gradient of the sum on to both ways.
    fn join_back(
        &self,
        pass: &Self::Pass,
        ways: &Branches<Self::Unit>,
        y: &Activations<Self::Unit>,
        gradients: &mut Gradients<Self::Unit, Cpu>,
    ) -> Result<(), Self::Error>;
}

/// What an operation lies between.
pub struct Neighbours<'a, E: Unit, To: Shape = (usize, usize)> {
    /// Its input.
    pub x: &'a Activations<E>,
    /// Its output.
    pub y: &'a Tensor<To, E, Cpu>,
}

/// dfdx's tape fails with what dfdx knows of. What really went wrong in an operation is kept here, so that it comes out of
/// the tape as itself.
pub(crate) struct Failure<E>(Rc<Cell<Option<E>>>);

impl<E> Default for Failure<E> {
    fn default() -> Self {
        Self(Rc::default())
    }
}

impl<E: From<OpError>> Failure<E> {
    /// Keeps an error, and gives dfdx one that it can carry.
    fn keep<T>(&self, result: Result<T, E>) -> Result<T, OpError> {
        result.map_err(|error| {
            self.0.set(Some(error));
            OpError::OutOfMemory
        })
    }

    /// The same place, for a tape to keep.
    fn share(&self) -> Self {
        Self(Rc::clone(&self.0))
    }

    /// What went wrong in truth.
    pub(crate) fn behind(&self, error: OpError) -> E {
        self.0.take().unwrap_or_else(|| error.into())
    }
}

/// Carries out an operation, and tapes its way back.
pub(crate) fn carry_out<O, To, T>(
    operation: &O,
    pass: &O::Pass,
    x: Activations<O::Unit, T>,
    failure: &Failure<O::Error>,
) -> Result<Tensor<To, O::Unit, Cpu, T>, OpError>
where
    O: Operation<To>,
    To: Shape,
    T: Tape<O::Unit, Cpu>,
{
    let (x, mut tape) = x.split_tape();
    let (y, kept) = failure.keep(operation.forward(pass, &x, T::OWNS_TAPE))?;
    if T::OWNS_TAPE {
        let (operation, pass, output) = (operation.clone(), pass.clone(), y.clone());
        let failure = failure.share();
        tape.add_backward_op(move |gradients| {
            let around = Neighbours { x: &x, y: &output };
            failure.keep(operation.backward(&pass, around, kept, gradients))
        });
    }
    Ok(y.put_tape(tape))
}

/// Lets two ways part, and tapes how they come back together.
pub(crate) fn part<J: Junction, T: Tape<J::Unit, Cpu>>(
    junction: &J,
    pass: &J::Pass,
    x: Activations<J::Unit, T>,
    failure: &Failure<J::Error>,
) -> Result<(Branches<J::Unit>, T), OpError> {
    let (x, mut tape) = x.split_tape();
    let ways = failure.keep(junction.part(&x))?;
    if T::OWNS_TAPE {
        let (junction, pass, out, failure) = (junction.clone(), pass.clone(), ways.clone(), failure.share());
        tape.add_backward_op(move |gradients| failure.keep(junction.part_back(&pass, &x, &out, gradients)));
    }
    Ok((ways, tape))
}

/// Lets two ways come together, and tapes how they part on the way back.
pub(crate) fn join<J: Junction, T: Tape<J::Unit, Cpu>>(
    junction: &J,
    pass: &J::Pass,
    ways: Branches<J::Unit>,
    mut tape: T,
    failure: &Failure<J::Error>,
) -> Result<Activations<J::Unit, T>, OpError> {
    let y = failure.keep(junction.join(pass, &ways))?;
    if T::OWNS_TAPE {
        let (junction, pass, output, failure) = (junction.clone(), pass.clone(), y.clone(), failure.share());
        tape.add_backward_op(move |gradients| failure.keep(junction.join_back(&pass, &ways, &output, gradients)));
    }
    Ok(y.put_tape(tape))
}

/// All weights of a model as one flat tensor.
///
/// Cloning shares them; changing them while a clone lives copies them first, so a tape never sees a weight move.
#[derive(Clone, Debug)]
pub struct Parameters<E: Unit = f32> {
    pub(crate) flat: Tensor<(usize,), E, Cpu>,
    /// Under this tensor's name the flat gradient lies in a tape's [`Gradients`]. It is not `flat` itself, because dfdx
    /// would clear a slot of its size for every step; a small one is cheap, and the gradient's memory, which operations
    /// overwrite, is lent to the tape instead.
    gradient_key: Tensor<(), E, Cpu>,
}

impl<E: Unit> Parameters<E> {
    /// Parameters that a tensor stores.
    pub(crate) fn stored(flat: Tensor<(usize,), E, Cpu>) -> Result<Self, OpError> {
        let gradient_key = flat.device().try_tensor_from_vec(vec![E::default()], ())?;
        Ok(Self { flat, gradient_key })
    }

    /// Gradients for a tape whose operations write the flat gradient into the given memory.
    pub fn lend_gradient(&self, gradient: Vec<E>) -> Result<Gradients<E, Cpu>, OpError> {
        let mut gradients = Gradients::leaky();
        **gradients.get_or_alloc_mut(&self.gradient_key)? = gradient;
        Ok(gradients)
    }

    /// The flat gradient, for an operation to write its part.
    pub(crate) fn gradient<'a>(&self, gradients: &'a mut Gradients<E, Cpu>) -> Result<&'a mut Vec<E>, OpError> {
        Ok(&mut **gradients.get_or_alloc_mut(&self.gradient_key)?)
    }

    /// Takes the lent memory back, with the gradient in it.
    pub fn take_gradient(&self, mut gradients: Gradients<E, Cpu>) -> Result<Vec<E>, OpError> {
        self.gradient(&mut gradients).map(std::mem::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a device may say that dfdx has no word for.
    #[derive(Debug, PartialEq)]
    enum DeviceError {
        Memory,
        Burnt,
    }

    impl From<OpError> for DeviceError {
        fn from(_: OpError) -> Self {
            Self::Memory
        }
    }

    /// Hands everything on, and fails in its backward pass if it is told to.
    #[derive(Clone)]
    struct Through {
        burns: bool,
    }

    impl Operation<()> for Through {
        type Unit = u64;
        type Pass = ();
        type Saved = ();
        type Error = DeviceError;

        fn forward(&self, (): &(), x: &Activations<u64>, _: bool) -> Forward<Self, ()> {
            Ok((x.device().try_tensor_from_vec(vec![x[[0, 0]]], ())?, ()))
        }

        fn backward(
            &self,
            (): &(),
            around: Neighbours<'_, u64, ()>,
            (): (),
            gradients: &mut Gradients<u64, Cpu>,
        ) -> Result<(), DeviceError> {
            if self.burns {
                return Err(DeviceError::Burnt);
            }
            let gradient = gradients.get_or_alloc_mut(around.y)?[0];
            gradients.get_or_alloc_mut(around.x)?[0] = gradient;
            Ok(())
        }
    }

    fn forward_and_backward(burns: bool) -> Result<u64, DeviceError> {
        let x = Cpu::default().try_tensor_from_vec(vec![7], (1, 1))?;
        let failure = Failure::default();
        let run_tape = || -> Result<_, OpError> {
            carry_out(&Through { burns }, &(), x.clone().traced(Gradients::leaky()), &failure)?.try_backward()
        };
        let mut gradients = run_tape().map_err(|error| failure.behind(error))?;
        Ok(gradients.get_or_alloc_mut(&x)?[0])
    }

    #[test]
    fn an_error_inside_a_tape_comes_out_as_itself() {
        assert_eq!(forward_and_backward(false), Ok(1));
        assert_eq!(forward_and_backward(true), Err(DeviceError::Burnt));
    }
}
