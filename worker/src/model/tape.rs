//! Records operations on dfdx's tape, which runs their backward passes. Nothing else in this program touches the tape.
//!
//! dfdx owns the shapes of tensors, their identities, the tape and the slots of gradients. The stored value of a tensor
//! depends on the device: on the CPU the numbers themselves (`f32`), on a GPU the address of the array that holds them.
//! So one network definition serves both devices with the same tape.

use std::cell::Cell;
use std::rc::Rc;

use dfdx::prelude::*;

/// Errors of dfdx's own tensors: out of memory.
pub type OpError = CpuError;
/// A minibatch of activations, one row per sample.
pub type Activations<E, T = NoneTape> = Tensor<(usize, usize), E, Cpu, T>;

/// Result of an operation's forward pass: its output, and the values saved for its backward pass.
pub type Forward<O, To = (usize, usize)> =
    Result<(Tensor<To, <O as Operation<To>>::Unit, Cpu>, <O as Operation<To>>::Saved), <O as Operation<To>>::Error>;

/// An operation on a minibatch on some device: a layer, whose output is again a minibatch, or a loss.
pub trait Operation<To: Shape = (usize, usize)>: Clone + 'static {
    /// Type of a tensor's elements: the numbers themselves or, on a GPU, the address of the array that holds them.
    type Unit: Unit;
    /// Context shared by all operations of one pass through a network: weights, and the seed of dropout.
    type Pass: Clone + 'static;
    /// Values that the operation's backward pass needs besides input and output.
    type Saved: 'static;
    type Error: From<OpError> + 'static;

    /// Computes the output and, if `taped`, the values to save for the backward pass.
    fn forward(&self, pass: &Self::Pass, x: &Activations<Self::Unit>, taped: bool) -> Forward<Self, To>;

    /// Runs the operation's backward pass: takes the gradient of its output out of `gradients`, writes the gradient of
    /// its weights there, and adds to the gradient of its input.
    fn backward(
        &self,
        pass: &Self::Pass,
        around: Neighbours<'_, Self::Unit, To>,
        kept: Self::Saved,
        gradients: &mut Gradients<Self::Unit, Cpu>,
    ) -> Result<(), Self::Error>;
}

/// A layer: an operation of which networks consist.
pub trait Layer: Operation {
    /// Operations at both ends of residual blocks: the split of the input and the sum of the outputs.
    type Junction: Junction<Unit = <Self as Operation>::Unit, Pass = <Self as Operation>::Pass, Error = <Self as Operation>::Error>;
}

/// The tensors of a residual block's two paths: main path and skip path.
pub type Branches<E> = [Activations<E>; 2];

/// The two ends of a residual block on some device: two paths get the same input, and their outputs are added.
pub trait Junction: Clone + 'static {
    /// Type of a tensor's elements: the numbers themselves or, on a GPU, the address of the array that holds them.
    type Unit: Unit;
    /// Context shared by all operations of one pass through a network: weights, and the seed of dropout.
    type Pass: Clone + 'static;
    type Error: From<OpError> + 'static;

    /// Begins a residual block: returns two tensors with the numbers of the input, one for each path.
    fn part(&self, x: &Activations<Self::Unit>) -> Result<Branches<Self::Unit>, Self::Error>;

    /// Backward pass of a block's beginning: combines the gradients of both paths into that of the input.
    fn part_back(
        &self,
        pass: &Self::Pass,
        x: &Activations<Self::Unit>,
        ways: &Branches<Self::Unit>,
        gradients: &mut Gradients<Self::Unit, Cpu>,
    ) -> Result<(), Self::Error>;

    /// Ends a residual block: returns the sum of both paths.
    fn join(&self, pass: &Self::Pass, ways: &Branches<Self::Unit>) -> Result<Activations<Self::Unit>, Self::Error>;

    /// Backward pass of a block's end: passes the gradient of the sum to both paths.
    fn join_back(
        &self,
        pass: &Self::Pass,
        ways: &Branches<Self::Unit>,
        y: &Activations<Self::Unit>,
        gradients: &mut Gradients<Self::Unit, Cpu>,
    ) -> Result<(), Self::Error>;
}

/// Input and output of an operation, for its backward pass.
pub struct Neighbours<'a, E: Unit, To: Shape = (usize, usize)> {
    pub x: &'a Activations<E>,
    pub y: &'a Tensor<To, E, Cpu>,
}

/// The original error of an operation. dfdx's tape can only carry dfdx's errors, so the real one is kept here and
/// returned instead.
pub(crate) struct Failure<E>(Rc<Cell<Option<E>>>);

impl<E> Default for Failure<E> {
    fn default() -> Self {
        Self(Rc::default())
    }
}

impl<E: From<OpError>> Failure<E> {
    /// Stores an operation's error, and returns one that dfdx's tape can carry.
    fn keep<T>(&self, result: Result<T, E>) -> Result<T, OpError> {
        result.map_err(|error| {
            self.0.set(Some(error));
            OpError::OutOfMemory
        })
    }

    /// Returns another handle to the same stored error, through which a backward pass on the tape can report its error.
    fn share(&self) -> Self {
        Self(Rc::clone(&self.0))
    }

    /// Returns the operation's original error, if one was stored; otherwise converts the given error of dfdx.
    pub(crate) fn behind(&self, error: OpError) -> E {
        self.0.take().unwrap_or_else(|| error.into())
    }
}

/// Runs an operation and records its backward pass on the tape.
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

/// Begins a residual block: gives its input to two paths and records the backward pass of this split on the tape.
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

/// Ends a residual block: adds the outputs of its two paths and records the backward pass of this addition on the tape.
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
/// Clones share the weights; a change while a clone exists copies them first, so a tape never sees a weight move.
#[derive(Clone, Debug)]
pub struct Parameters<E: Unit = f32> {
    pub(crate) flat: Tensor<(usize,), E, Cpu>,
    /// Key under which a tape's [`Gradients`] hold the gradient of all weights. It is a tensor of one number: under the
    /// weights' own key, dfdx would clear the memory of the whole gradient in every step, although operations overwrite
    /// it anyway.
    gradient_key: Tensor<(), E, Cpu>,
}

impl<E: Unit> Parameters<E> {
    /// Wraps a tensor that stores all weights of a model.
    pub(crate) fn stored(flat: Tensor<(usize,), E, Cpu>) -> Result<Self, OpError> {
        let gradient_key = flat.device().try_tensor_from_vec(vec![E::default()], ())?;
        Ok(Self { flat, gradient_key })
    }

    /// Returns gradients for a tape, whose operations write the gradient of all weights into the given memory instead
    /// of new memory.
    pub fn lend_gradient(&self, gradient: Vec<E>) -> Result<Gradients<E, Cpu>, OpError> {
        let mut gradients = Gradients::leaky();
        **gradients.get_or_alloc_mut(&self.gradient_key)? = gradient;
        Ok(gradients)
    }

    /// Returns the flat gradient (of all weights), for an operation to write its part.
    pub(crate) fn gradient<'a>(&self, gradients: &'a mut Gradients<E, Cpu>) -> Result<&'a mut Vec<E>, OpError> {
        Ok(&mut **gradients.get_or_alloc_mut(&self.gradient_key)?)
    }

    /// Takes the gradient of all weights out of a tape's gradients, in the memory that was lent for it.
    pub fn take_gradient(&self, mut gradients: Gradients<E, Cpu>) -> Result<Vec<E>, OpError> {
        self.gradient(&mut gradients).map(std::mem::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error of a device that dfdx cannot express.
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

    /// Passes everything through, and fails in its backward pass on request.
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
