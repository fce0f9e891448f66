//! The operations of a program as the CPU carries them out.

use dfdx::prelude::*;

use super::{Parameters, Rows, Threads, activation, dropout};
use crate::network::Network;
use crate::program::{Op, Program};
use crate::tape::{Around, Forward, OpError, Operation};

/// A layer on the CPU.
#[derive(Clone, Debug)]
pub struct CpuLayer {
    op: Op,
    threads: Threads,
}

/// What one pass through a network is computed with.
#[derive(Clone, Debug)]
pub struct Pass {
    pub parameters: Parameters,
    /// What decides dropout: different for every step.
    pub key: u64,
}

/// What a layer's way back needs beside its input and its output.
pub enum Kept {
    /// Nothing.
    Nothing,
    /// Where the largest number of every square was found.
    Winners(Vec<u32>),
    /// What every number was multiplied by.
    Factors(Vec<f32>),
}

impl CpuLayer {
    pub(super) fn new(op: Op, threads: Threads) -> Self {
        Self { op, threads }
    }
}

/// The network of a program on the CPU.
#[must_use]
pub fn network(program: Program, threads: Threads) -> Network<CpuLayer> {
    let first_with_weights = program.first_with_weights();
    let layers = program.ops.into_iter().map(|op| CpuLayer::new(op, threads));
    Network::new(layers.collect(), first_with_weights)
}

impl Operation for CpuLayer {
    type Unit = f32;
    type Pass = Pass;
    type Kept = Kept;
    type Error = OpError;

    fn forward(&self, pass: &Pass, x: &Rows, taped: bool) -> Forward<Self> {
        let Pass { parameters, key } = pass;
        let plain = |y: Rows| (y, Kept::Nothing);
        match &self.op {
            Op::Dense(dense) => dense.forward(parameters, x, self.threads).map(plain),
            Op::Conv(conv) => conv.forward(parameters, x, self.threads).map(plain),
            Op::MaxPool(pool) => pool.max(x, taped).map(|(y, winners)| (y, Kept::Winners(winners))),
            Op::MeanPool(pool) => pool.mean(x).map(plain),
            Op::Activation(activation) => activation::forward(*activation, x).map(plain),
            Op::Dropout(op) => dropout::forward(*op, *key, x).map(|(y, factors)| (y, Kept::Factors(factors))),
            Op::ToRows(_) => unreachable!("the CPU keeps images sample by sample, and programs for that turn nothing"),
        }
    }

    fn backward(
        &self,
        pass: &Pass,
        Around { x, y }: Around<'_, f32>,
        kept: Kept,
        gradients: &mut Gradients<f32, Cpu>,
    ) -> Result<(), OpError> {
        let parameters = &pass.parameters;
        match (&self.op, kept) {
            (Op::Dense(dense), _) => dense.backward(parameters, x, y, gradients, self.threads),
            (Op::Conv(conv), _) => conv.backward(parameters, x, y, gradients, self.threads),
            (Op::MaxPool(_), Kept::Winners(winners)) => super::pool::max_backward(&winners, x, y, gradients),
            (Op::MeanPool(pool), _) => pool.mean_backward(x, y, gradients),
            (Op::Activation(activation), _) => activation::backward(*activation, x, y, gradients),
            (Op::Dropout(_), Kept::Factors(factors)) => dropout::backward(&factors, x, y, gradients),
            (Op::MaxPool(_) | Op::Dropout(_) | Op::ToRows(_), _) => {
                unreachable!("a layer keeps what its own way back needs")
            }
        }
    }
}
