//! Layers on the device, each with room for what it writes, made once for the largest minibatch: nothing is allocated on
//! the device in a step.

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
pub(super) use self::sums::PARTS_MAX;
use super::address::DeviceAddress;
use super::error::GpuError;
use super::gpu::Gpu;
use super::memory::Array;
use super::tensor_address::{TensorAddress, place_of, slot, tensor_at};
use crate::model::program::{InputGradient, Op};
use crate::model::tape::{Activations, Forward, Neighbours, Operation, Parameters};

/// Kernels count in 32 bits, and a grid of blocks has a side of at most so many.
const SIDE_MAX: usize = 65_535;

/// A layer on the device.
#[derive(Clone)]
pub(super) struct CudaLayer(Rc<Layer>);

struct Layer {
    op: Op,
    /// Numbers per sample before and after it.
    inputs: usize,
    outputs: usize,
    y: Array<f32>,
    /// The gradient of what comes before it, where that can be trained.
    dx: Option<Rc<Array<f32>>>,
    room: Room,
}

/// What a layer keeps between its forward pass and its way back.
enum Room {
    Nothing,
    Conv(Rc<ConvRoom>),
    /// Where the largest number of every square was found.
    Winners(Array<u32>),
    Norm(NormRoom),
}

/// What one pass through a network is computed with.
#[derive(Clone)]
pub(super) struct Pass(pub(super) Rc<PassData>);

pub(super) struct PassData {
    pub(super) gpu: Rc<Gpu>,
    pub(super) parameters: Parameters<TensorAddress>,
    /// What decides dropout: different for every step.
    pub(super) key: u64,
    /// Room for column sums in [`PARTS_MAX`] parts, for the widest layer.
    pub(super) sums: DeviceAddress<f32>,
    /// Where batch norms have their numbers from.
    pub(super) statistics: Statistics,
    /// How much of a minibatch this is.
    pub(super) share: f32,
}

/// Where a layer's forward pass reads and writes.
///
/// A layer's functions may be called with it if `x` has `samples` rows of what the layer reads, `y` room for as many of
/// what it writes, and `weights` all weights of the layer's model; none of them overlap.
#[derive(Clone, Copy)]
struct ForwardArrays {
    samples: usize,
    weights: DeviceAddress<f32>,
    x: DeviceAddress<f32>,
    y: DeviceAddress<f32>,
}

/// Where a layer's way back reads and writes.
///
/// A layer's functions may be called with it if beside what [`ForwardArrays`] asks for `y` is what the forward pass has
/// written,
/// `dy` its gradient, which may be overwritten, `dx` has room for that of `x`, `gradient` for that of all weights, and
/// `sums` for column sums in [`PARTS_MAX`] parts; none of them overlap.
#[derive(Clone, Copy)]
struct BackwardArrays {
    samples: usize,
    weights: DeviceAddress<f32>,
    gradient: DeviceAddress<f32>,
    x: DeviceAddress<f32>,
    y: DeviceAddress<f32>,
    dy: DeviceAddress<f32>,
    /// None where nothing trainable comes before the layer.
    dx: Option<DeviceAddress<f32>>,
    sums: DeviceAddress<f32>,
}

impl CudaLayer {
    /// A layer for minibatches of so many samples. Only what a gradient will come back through has a place for that of its
    /// input. Where convolutions have room in common, they unfold there.
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
            room,
        })))
    }

    /// The same layer for another minibatch at the same time: what it writes on the way there it has for itself, and in common
    /// what is of use only while one comes back.
    pub(super) fn beside(&self, gpu: &Gpu) -> Result<Self, GpuError> {
        let layer = &*self.0;
        Ok(Self(Rc::new(Layer {
            op: layer.op.clone(),
            inputs: layer.inputs,
            outputs: layer.outputs,
            y: Array::zeros(gpu, layer.y.len())?,
            dx: layer.dx.clone(),
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
        // SAFETY: the layer before has written `samples` rows of as many numbers as the program says that this one reads,
        // and this layer's own arrays have room for a larger minibatch.
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
            sums: pass.sums,
        };
        // SAFETY: as on the forward pass. Every layer after this one has put the place of its input's gradient in this
        // one's slot, and the loss that of the logits' gradient.
        unsafe { self.0.backward(&pass.gpu, pass.key, back) }
    }
}

impl Layer {
    /// # Safety
    /// `at` must be as [`ForwardArrays`] asks for.
    unsafe fn forward(&self, pass: &PassData, at: ForwardArrays) -> Result<(), GpuError> {
        let (gpu, key) = (&*pass.gpu, pass.key);
        let total = at.samples * self.outputs;
        // SAFETY: as the caller has promised.
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

    /// # Safety
    /// `at` must be as [`BackwardArrays`] asks for.
    unsafe fn backward(&self, gpu: &Gpu, key: u64, at: BackwardArrays) -> Result<(), GpuError> {
        let total = at.samples * self.inputs;
        // SAFETY: as the caller has promised.
        unsafe {
            match (&self.op, &self.room, at.dx) {
                (Op::Dense(op), _, _) => dense::backward(gpu, op, at),
                (Op::Conv(op), Room::Conv(room), _) => conv::backward(gpu, op, room, at),
                (Op::Norm(op), Room::Norm(room), _) => norm::backward(gpu, op, room, at),
                (Op::MaxPool(op), Room::Winners(winners), Some(dx)) => pool::max_back(gpu, op, winners, at, dx),
                (Op::MeanPool(op), _, Some(dx)) => pool::mean_back(gpu, op, at, dx),
                (Op::Activation(op), _, Some(dx)) => elementwise::activate_back(gpu, *op, total, at, dx),
                // What was dropped on the forward pass is dropped on the way back.
                (Op::Dropout(op), _, Some(dx)) => elementwise::drop(gpu, *op, key, (at.dy, dx), total),
                (Op::ToRows(op), _, Some(dx)) => {
                    elementwise::swap_outer(gpu, op.plane, (at.samples, op.channels), (at.dy, dx))
                }
                (Op::FromRows(op), _, Some(dx)) => {
                    elementwise::swap_outer(gpu, op.plane, (op.channels, at.samples), (at.dy, dx))
                }
                // A layer without weights that nothing trainable comes before is not taped.
                _ => Ok(()),
            }
        }
    }
}
