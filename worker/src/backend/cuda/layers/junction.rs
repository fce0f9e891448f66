//! The beginning and end of a residual block on the GPU, where body and skip path part and join.

use std::rc::Rc;

use dfdx::prelude::{Cpu, Gradients, HasShape};

use super::super::error::GpuError;
use super::super::gpu::{Gpu, Grid};
use super::super::kernels::{AddWays, CutWays};
use super::super::memory::Array;
use super::super::tensor_address::{TensorAddress, place_of, slot, tensor_at};
use super::Pass;
use crate::model::program::{Op, Residual};
use crate::model::tape::{Activations, Branches, Junction};

/// The two ends of a residual block on the GPU: two paths get the same input, and their outputs are added.
#[derive(Clone)]
pub(in super::super) struct CudaJunction(Rc<Room>);

struct Room {
    relu: bool,
    /// True if the last layer of one of the block's two paths overwrites the gradient at its output: then each path
    /// gets its own copy of that gradient.
    twice: bool,
    y: Array<f32>,
    /// Buffers for the gradients of a residual block's two paths; empty if the paths use the gradient of their sum.
    ways: Rc<[Array<f32>; 2]>,
}

impl CudaJunction {
    pub(in super::super) fn new(
        gpu: &Gpu,
        block: &Residual,
        outputs: usize,
        minibatch: usize,
        trains: bool,
    ) -> Result<Self, GpuError> {
        let overwrites = |ops: &[Op]| match ops.last() {
            Some(Op::Dense(dense)) => dense.relu,
            Some(Op::Conv(conv)) => conv.relu,
            _ => false,
        };
        let twice = overwrites(&block.body) || overwrites(&block.skip);
        let numbers = |wanted: bool| if wanted && trains { minibatch * outputs } else { 0 };
        Ok(Self(Rc::new(Room {
            relu: block.relu,
            twice,
            y: Array::zeros(gpu, minibatch * outputs)?,
            ways: Rc::new([
                Array::zeros(gpu, numbers(block.relu || twice))?,
                Array::zeros(gpu, numbers(twice))?,
            ]),
        })))
    }

    /// Makes the ends of the same residual block for another micro-batch in flight. The gradients' buffers are shared.
    pub(in super::super) fn beside(&self, gpu: &Gpu) -> Result<Self, GpuError> {
        let room = &self.0;
        Ok(Self(Rc::new(Room {
            relu: room.relu,
            twice: room.twice,
            y: Array::zeros(gpu, room.y.len())?,
            ways: Rc::clone(&room.ways),
        })))
    }
}

impl Junction for CudaJunction {
    type Unit = TensorAddress;
    type Pass = Pass;
    type Error = GpuError;

    /// Returns the input of a residual block as two tensors at one address, so that each path has its own gradient.
    fn part(&self, x: &Activations<TensorAddress>) -> Result<Branches<TensorAddress>, GpuError> {
        let same = || tensor_at(place_of(x), *x.shape());
        Ok([same()?, same()?])
    }

    fn part_back(
        &self,
        Pass(pass): &Pass,
        x: &Activations<TensorAddress>,
        [one, other]: &Branches<TensorAddress>,
        gradients: &mut Gradients<TensorAddress, Cpu>,
    ) -> Result<(), GpuError> {
        let sum = *slot(gradients, one)?;
        let total = x.shape().0 * x.shape().1;
        let arguments = AddWays {
            one: sum.into(),
            other: (*slot(gradients, other)?).into(),
            y: sum.into(),
            total: total as u32,
            relu: 0,
        };
        // SAFETY: both paths' gradients are as large as `x`, and nothing else reads the one that is added to.
        unsafe {
            pass.gpu
                .launch(&pass.gpu.kernels.add_ways, Grid::each(total), arguments)?;
        }
        *slot(gradients, x)? = sum;
        Ok(())
    }

    fn join(
        &self,
        Pass(pass): &Pass,
        [one, other]: &Branches<TensorAddress>,
    ) -> Result<Activations<TensorAddress>, GpuError> {
        let shape = *one.shape();
        let total = shape.0 * shape.1;
        let arguments = AddWays {
            one: place_of(one),
            other: place_of(other),
            y: self.0.y.at(),
            total: total as u32,
            relu: u32::from(self.0.relu),
        };
        // SAFETY: both paths end in `total` numbers, and `y` has room for the largest minibatch.
        unsafe {
            pass.gpu
                .launch(&pass.gpu.kernels.add_ways, Grid::each(total), arguments)?;
        }
        Ok(tensor_at(self.0.y.at(), shape)?)
    }

    fn join_back(
        &self,
        Pass(pass): &Pass,
        [one, other]: &Branches<TensorAddress>,
        y: &Activations<TensorAddress>,
        gradients: &mut Gradients<TensorAddress, Cpu>,
    ) -> Result<(), GpuError> {
        let Room { relu, twice, ways, .. } = &*self.0;
        let mut places = [*slot(gradients, y)?; 2];
        if *relu || *twice {
            let total = y.shape().0 * y.shape().1;
            let arguments = CutWays {
                dy: places[0].into(),
                y: place_of(y),
                total: total as u32,
                relu: u32::from(*relu),
                twice: u32::from(*twice),
                one: ways[0].at(),
                other: ways[1].at(),
            };
            // SAFETY: there is room for the gradients of the largest minibatch: one copy, or two if `twice`.
            unsafe {
                pass.gpu
                    .launch(&pass.gpu.kernels.cut_ways, Grid::each(total), arguments)?;
            }
            places = if *twice {
                [ways[0].at().into(), ways[1].at().into()]
            } else {
                [ways[0].at().into(); 2]
            };
        }
        for (way, place) in [one, other].into_iter().zip(places) {
            *slot(gradients, way)? = place;
        }
        Ok(())
    }
}
