//! Layers on the GPU. Each owns buffers for its results, made once for the largest minibatch, so no step allocates
//! device memory.

mod conv;
mod dense;
mod elementwise;
mod junction;
mod norm;
mod pool;
mod sums;

use std::rc::Rc;

use dfdx::prelude::{Cpu, Gradients, HasShape};

pub(super) use self::conv::ConvRoom;
pub(super) use self::junction::CudaJunction;
use self::norm::NormRoom;
pub(super) use self::norm::Statistics;
use self::sums::PARTS_MAX;
use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::Array;
use super::tensor_address::{TensorAddress, place_of, slot, tensor_at};
use crate::model::program::{InputGradient, Op};
use crate::model::tape::{Activations, Forward, Neighbours, Operation, Parameters};

/// Largest side of a CUDA grid of thread blocks.
const SIDE_MAX: usize = 65_535;

/// A layer on the GPU with its buffers.
#[derive(Clone)]
pub(super) struct CudaLayer(Rc<Layer>);

struct Layer {
    op: Op,
    /// Length of one sample's input to the layer; `outputs` is the length of its output.
    inputs: usize,
    outputs: usize,
    y: Array<f32>,
    /// Buffer for the gradient of the layer's input; `None` if nothing before the layer can be trained.
    dx: Option<Rc<Array<f32>>>,
    /// Buffer for a minibatch's column sums (the gradient of the biases) in [`PARTS_MAX`] parts; empty without biases.
    sums: Rc<Array<f32>>,
    room: Room,
}

/// Data that a layer keeps from its forward pass for its backward pass.
enum Room {
    Nothing,
    Conv(Rc<ConvRoom>),
    /// Max pooling keeps the index of the largest number in each window.
    Winners(Array<u32>),
    Norm(NormRoom),
}

/// Settings and buffers of one pass through a network.
#[derive(Clone)]
pub(super) struct Pass(pub(super) Rc<PassData>);

pub(super) struct PassData {
    pub(super) gpu: Rc<Gpu>,
    pub(super) parameters: Parameters<TensorAddress>,
    pub(super) key: StepKey,
    /// Source of the means and variances of batch norms.
    pub(super) statistics: Statistics,
    /// Fraction of the minibatch that the pass computes; the loss scales its gradients by it.
    pub(super) share: f32,
}

/// Seed of dropout, different for every step.
#[derive(Clone, Copy)]
pub(super) enum StepKey {
    /// The key of this step.
    Known(u64),
    /// Address of the step's key on the device: work that is recorded once finds another key there in every step.
    OnDevice(DeviceAddress<u64>),
}

/// Addresses that a layer's forward pass reads and writes.
///
/// A layer may be launched with them if `x` has `samples` rows of the layer's input, `y` has room for as many rows of
/// its output, `weights` has all weights of the layer's model, and none of them overlap.
#[derive(Clone, Copy)]
struct ForwardArrays {
    samples: usize,
    weights: DeviceAddress<f32>,
    x: DeviceAddress<f32>,
    y: DeviceAddress<f32>,
}

/// Addresses that a layer's backward pass reads and writes.
///
/// A layer may be launched with them if, besides the conditions of [`ForwardArrays`], `y` holds the result of the
/// forward pass, `dy` its gradient, which may be overwritten, `dx` has room for the gradient of `x`, `gradient` for
/// that of all weights, `sums` for column sums in [`PARTS_MAX`] parts, and none of them overlap.
#[derive(Clone, Copy)]
struct BackwardArrays {
    samples: usize,
    weights: DeviceAddress<f32>,
    gradient: DeviceAddress<f32>,
    x: DeviceAddress<f32>,
    y: DeviceAddress<f32>,
    dy: DeviceAddress<f32>,
    /// Gradient of the layer's input; `None` if nothing before the layer can be trained.
    dx: Option<DeviceAddress<f32>>,
    sums: DeviceAddress<f32>,
}

impl CudaLayer {
    /// Makes a layer for minibatches of at most this many samples. It has a buffer for its input's gradient only if
    /// that is needed. With `common`, a convolution unfolds in that shared buffer.
    pub(super) fn new(
        gpu: &Gpu,
        op: &Op,
        inputs: usize,
        minibatch: usize,
        input_gradient: InputGradient,
        common: Option<&Rc<ConvRoom>>,
    ) -> Result<Self, GpuError> {
        let outputs = op.outputs(inputs);
        let numbers = match op {
            Op::Conv(conv) if conv.geometry.window().max(conv.geometry.outputs) > SIDE_MAX => usize::MAX,
            _ => minibatch.saturating_mul(inputs.max(outputs)),
        };
        if u32::try_from(numbers).is_err() {
            return Err(GpuError::TooLarge { minibatch, outputs });
        }
        let dx = match input_gradient {
            InputGradient::Needed => Some(Rc::new(Array::zeros(gpu, minibatch * inputs)?)),
            InputGradient::NotNeeded => None,
        };
        let biases = match op {
            Op::Dense(dense) => dense.outputs,
            Op::Conv(conv) => conv.geometry.outputs,
            _ => 0,
        };
        let room = match op {
            Op::Conv(conv) => Room::Conv(match common {
                Some(common) => Rc::clone(common),
                None => Rc::new(ConvRoom::new(gpu, conv, minibatch, input_gradient)?),
            }),
            Op::MaxPool(_) => Room::Winners(Array::zeros(gpu, minibatch * outputs)?),
            Op::Norm(norm) => Room::Norm(NormRoom::new(gpu, norm, minibatch)?),
            _ => Room::Nothing,
        };
        Ok(Self(Rc::new(Layer {
            op: op.clone(),
            inputs,
            outputs,
            y: Array::zeros(gpu, minibatch * outputs)?,
            dx,
            sums: Rc::new(Array::zeros(gpu, PARTS_MAX * biases)?),
            room,
        })))
    }

    /// Makes the same layer for another micro-batch in flight. It has its own buffers for the forward pass, and shares
    /// those that only the backward pass uses.
    pub(super) fn beside(&self, gpu: &Gpu) -> Result<Self, GpuError> {
        let layer = &*self.0;
        Ok(Self(Rc::new(Layer {
            op: layer.op.clone(),
            inputs: layer.inputs,
            outputs: layer.outputs,
            y: Array::zeros(gpu, layer.y.len())?,
            dx: layer.dx.clone(),
            sums: Rc::clone(&layer.sums),
            room: match &layer.room {
                Room::Nothing => Room::Nothing,
                Room::Conv(room) => Room::Conv(Rc::clone(room)),
                Room::Winners(winners) => Room::Winners(Array::zeros(gpu, winners.len())?),
                Room::Norm(room) => Room::Norm(room.beside(gpu)?),
            },
        })))
    }
}

impl crate::model::tape::Layer for CudaLayer {
    type Junction = CudaJunction;
}

impl Operation for CudaLayer {
    type Unit = TensorAddress;
    type Pass = Pass;
    type Saved = ();
    type Error = GpuError;

    fn forward(&self, Pass(pass): &Pass, x: &Activations<TensorAddress>, _: bool) -> Forward<Self> {
        let samples = x.shape().0;
        let there = ForwardArrays {
            samples,
            weights: place_of(&pass.parameters.flat),
            x: place_of(x),
            y: self.0.y.at(),
        };
        // SAFETY: the layer before has written `samples` rows of this layer's input, as the program says, and this
        // layer's own buffers are made for the largest minibatch.
        unsafe { self.0.forward(pass, there)? };
        Ok((tensor_at(self.0.y.at(), (samples, self.0.outputs))?, ()))
    }

    fn backward(
        &self,
        Pass(pass): &Pass,
        Neighbours { x, y }: Neighbours<'_, TensorAddress>,
        (): (),
        gradients: &mut Gradients<TensorAddress, Cpu>,
    ) -> Result<(), GpuError> {
        let dx = self.0.dx.as_ref().map(|dx| dx.at());
        if let Some(dx) = dx {
            *slot(gradients, x)? = dx.into();
        }
        let back = BackwardArrays {
            samples: x.shape().0,
            weights: place_of(&pass.parameters.flat),
            gradient: pass.parameters.gradient(gradients)?[0].into(),
            x: place_of(x),
            y: place_of(y),
            dy: (*slot(gradients, y)?).into(),
            dx,
            sums: self.0.sums.at(),
        };
        // SAFETY: as on the forward pass. The layer after this one has put the address of its input's gradient in this
        // layer's slot; after the last layer, the loss has.
        unsafe { self.0.backward(&pass.gpu, pass.key, back) }
    }
}

impl Layer {
    /// Launches the layer's forward pass.
    ///
    /// # Safety
    /// `at` must satisfy [`ForwardArrays`].
    unsafe fn forward(&self, pass: &PassData, at: ForwardArrays) -> Result<(), GpuError> {
        let (gpu, key) = (&*pass.gpu, pass.key);
        let total = at.samples * self.outputs;
        // SAFETY: the caller promises arrays of the sizes that the kernels read and write.
        unsafe {
            match (&self.op, &self.room) {
                (Op::Dense(op), _) => dense::forward(gpu, op, at),
                (Op::Conv(op), Room::Conv(room)) => conv::forward(gpu, op, room, at),
                (Op::MaxPool(op), Room::Winners(winners)) => pool::max(gpu, op, winners, at),
                (Op::MeanPool(op), _) => pool::mean(gpu, op, at),
                (Op::Activation(op), _) => elementwise::activate(gpu, *op, total, (at.x, at.y)),
                (Op::Dropout(op), _) => elementwise::drop(gpu, *op, key, (at.x, at.y), total),
                (Op::ToRows(op), _) => elementwise::swap_outer(gpu, op.plane, (op.channels, at.samples), (at.x, at.y)),
                (Op::FromRows(op), _) => {
                    elementwise::swap_outer(gpu, op.plane, (at.samples, op.channels), (at.x, at.y))
                }
                (Op::Norm(op), Room::Norm(room)) => norm::forward(gpu, op, room, pass.statistics, at),
                (Op::Residual(_), _) => unreachable!(
                    "a residual block is not run as one layer: its body and its skip path are run separately"
                ),
                (Op::Conv(_) | Op::MaxPool(_) | Op::Norm(_), _) => {
                    unreachable!("a layer was built without the buffers that its operation needs")
                }
            }
        }
    }

    /// Launches the layer's backward pass.
    ///
    /// # Safety
    /// `at` must satisfy [`BackwardArrays`].
    unsafe fn backward(&self, gpu: &Gpu, key: StepKey, at: BackwardArrays) -> Result<(), GpuError> {
        let total = at.samples * self.inputs;
        // SAFETY: the caller promises arrays of the sizes that the kernels read and write.
        unsafe {
            match (&self.op, &self.room, at.dx) {
                (Op::Dense(op), _, _) => dense::backward(gpu, op, at),
                (Op::Conv(op), Room::Conv(room), _) => conv::backward(gpu, op, room, at),
                (Op::Norm(op), Room::Norm(room), _) => norm::backward(gpu, op, room, at),
                (Op::MaxPool(op), Room::Winners(winners), Some(dx)) => pool::max_back(gpu, op, winners, at, dx),
                (Op::MeanPool(op), _, Some(dx)) => pool::mean_back(gpu, op, at, dx),
                (Op::Activation(op), _, Some(dx)) => elementwise::activate_back(gpu, *op, total, at, dx),
                // The same key drops the same numbers as on the forward pass.
                (Op::Dropout(op), _, Some(dx)) => elementwise::drop(gpu, *op, key, (at.dy, dx), total),
                (Op::ToRows(op), _, Some(dx)) => {
                    elementwise::swap_outer(gpu, op.plane, (at.samples, op.channels), (at.dy, dx))
                }
                (Op::FromRows(op), _, Some(dx)) => {
                    elementwise::swap_outer(gpu, op.plane, (op.channels, at.samples), (at.dy, dx))
                }
                // A layer without weights is not on the tape if nothing before it can be trained.
                _ => Ok(()),
            }
        }
    }
}
