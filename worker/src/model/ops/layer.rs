//! Layers on the CPU: runs the operations of a program.

use std::sync::{Arc, Mutex, PoisonError};

use dfdx::prelude::*;

use super::norm::Moments;
use super::tensor::{gradient_of, take_gradient};
use super::{BackwardContext, Parameters, Rows, activation, bias_relu, dropout, from_rows, values};
use crate::machine::parallel::Threads;
use crate::model::network::{Network, NetworkNode};
use crate::model::program::{Norm, Op, Program, Residual};
use crate::model::tape::{Branches, Forward, Junction, Layer, Neighbours, OpError, Operation};

/// A layer of a network on the CPU: one operation of a program.
#[derive(Clone, Debug)]
pub struct CpuLayer {
    op: Op,
    threads: Threads,
    /// True if results must have the same bits on every machine.
    exact: bool,
}

/// The two ends of a residual block on the CPU: two paths get the same input, and their outputs are added.
#[derive(Clone, Copy, Debug)]
pub struct CpuJunction {
    relu: bool,
}

/// Source of the means and variances of batch norms.
#[derive(Clone, Debug, Default)]
pub enum Statistics {
    /// Batch norms use the means and variances of the minibatch, as in training.
    #[default]
    Minibatch,
    /// Batch norms use the minibatch's means and variances, and also write them here.
    Noted(Arc<Mutex<Vec<f32>>>),
    /// Batch norms use these means and variances, which were measured before.
    Given(Arc<Vec<f32>>),
}

/// Context of one pass of a minibatch through a network: weights, seed of dropout and settings.
#[derive(Clone, Debug)]
pub struct Pass {
    pub parameters: Parameters,
    /// Seed of dropout, different for every step.
    pub key: u64,
    /// Source of the means and variances of batch norms.
    pub statistics: Statistics,
    /// Settings of the backward pass, which differ for micro-batches.
    pub backward: BackwardContext,
}

impl Pass {
    /// Makes the context for passing a whole minibatch through a network.
    #[must_use]
    pub fn new(parameters: Parameters, key: u64, statistics: Statistics) -> Self {
        Self {
            parameters,
            key,
            statistics,
            backward: BackwardContext::default(),
        }
    }
}

/// Values that a layer saves for its backward pass, besides input and output.
pub enum Saved {
    Nothing,
    /// Values that max pooling saves for its backward pass: the index of the largest number in each window.
    Winners(Vec<u32>),
    /// Values that dropout saves for its backward pass: the factor of each number, which is 0 if it was dropped.
    Factors(Vec<f32>),
    /// Values that normalisation saves for its backward pass: the mean and scaling factor of each set of numbers.
    Moments(Moments),
}

/// Builds the network of a program (a model's operations) on the CPU.
#[must_use]
pub fn network(program: Program, threads: Threads) -> Network<CpuLayer> {
    let first_with_weights = program.first_with_weights();
    Network::new(parts(program.ops, threads, false), first_with_weights)
}

/// Builds a network whose results have the same bits on every machine; only for the forward pass.
#[must_use]
pub fn exact_network(program: Program, threads: Threads) -> Network<CpuLayer> {
    let first_with_weights = program.first_with_weights();
    Network::new(parts(program.ops, threads, true), first_with_weights)
}

pub(super) fn parts(ops: Vec<Op>, threads: Threads, exact: bool) -> Vec<NetworkNode<CpuLayer>> {
    let part = |op| match op {
        Op::Residual(Residual { body, skip, relu, .. }) => NetworkNode::Block {
            body: parts(body, threads, exact),
            skip: parts(skip, threads, exact),
            junction: CpuJunction { relu },
        },
        op => NetworkNode::Layer(CpuLayer { op, threads, exact }),
    };
    ops.into_iter().map(part).collect()
}

impl Statistics {
    /// Returns the mean and scaling factor of each set of numbers in a minibatch that is normalised together.
    fn moments(&self, norm: &Norm, x: &Rows) -> Moments {
        let Some((means, variances)) = norm.statistics.clone() else {
            return norm.measure(x).0;
        };
        match self {
            Self::Given(given) => Moments::given(&given[means], &given[variances]),
            Self::Minibatch => norm.measure(x).0,
            Self::Noted(noted) => {
                let (moments, variance) = norm.measure(x);
                let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                noted[means].copy_from_slice(moments.means());
                // The unbiased variance, as in PyTorch: slightly larger than the variance of the sample itself.
                let len = norm.set_len(x.shape().0).max(2) as f64;
                for (to, variance) in noted[variances].iter_mut().zip(variance) {
                    *to = (variance * len / (len - 1.0)) as f32;
                }
                moments
            }
        }
    }
}

impl Layer for CpuLayer {
    type Junction = CpuJunction;
}

impl Operation for CpuLayer {
    type Unit = f32;
    type Pass = Pass;
    type Saved = Saved;
    type Error = OpError;

    fn forward(&self, pass: &Pass, x: &Rows, taped: bool) -> Forward<Self> {
        let Pass {
            parameters,
            key,
            statistics,
            backward: _,
        } = pass;
        let plain = |y: Rows| (y, Saved::Nothing);
        match &self.op {
            Op::Dense(dense) if self.exact => dense.forward_exactly(parameters, x).map(plain),
            Op::Conv(conv) if self.exact => conv.forward_exactly(parameters, x, self.threads).map(plain),
            Op::Activation(activation) if self.exact => activation::forward_exactly(*activation, x).map(plain),
            Op::Norm(norm) => {
                let moments = statistics.moments(norm, x);
                let y = norm.forward(parameters, x, &moments)?;
                Ok((y, Saved::Moments(moments)))
            }
            Op::Dense(dense) => dense.forward(parameters, x, self.threads).map(plain),
            Op::Conv(conv) => conv.forward(parameters, x, self.threads).map(plain),
            Op::MaxPool(pool) => pool.max(x, taped).map(|(y, winners)| (y, Saved::Winners(winners))),
            Op::MeanPool(pool) => pool.mean(x).map(plain),
            Op::Activation(activation) => activation::forward(*activation, x).map(plain),
            Op::Dropout(op) => dropout::forward(*op, *key, x).map(|(y, factors)| (y, Saved::Factors(factors))),
            Op::ToRows(_) | Op::FromRows(_) => {
                unreachable!("programs for the CPU must not contain conversions of the image layout")
            }
            Op::Residual(_) => {
                unreachable!("a residual block is not run as one layer: its body and its skip path are run separately")
            }
        }
    }

    fn backward(
        &self,
        pass: &Pass,
        Neighbours { x, y }: Neighbours<'_, f32>,
        kept: Saved,
        gradients: &mut Gradients<f32, Cpu>,
    ) -> Result<(), OpError> {
        match (&self.op, kept) {
            (Op::Dense(dense), _) => dense.backward(pass, x, y, gradients, self.threads),
            (Op::Conv(conv), _) => conv.backward(pass, x, y, gradients, self.threads),
            (Op::MaxPool(_), Saved::Winners(winners)) => super::pool::max_backward(&winners, x, y, gradients),
            (Op::MeanPool(pool), _) => pool.mean_backward(x, y, gradients),
            (Op::Activation(activation), _) => activation::backward(*activation, x, y, gradients),
            (Op::Dropout(_), Saved::Factors(factors)) => dropout::backward(&factors, x, y, gradients),
            (Op::Norm(norm), Saved::Moments(moments)) => norm.backward(pass, x, y, &moments, gradients),
            (Op::MaxPool(_) | Op::Dropout(_) | Op::Norm(_) | Op::ToRows(_) | Op::FromRows(_) | Op::Residual(_), _) => {
                unreachable!("a layer did not keep the values that its backward pass needs")
            }
        }
    }
}

/// Begins and ends residual blocks on the CPU. Both paths read the same tensor, and each adds to that tensor's
/// gradient.
impl Junction for CpuJunction {
    type Unit = f32;
    type Pass = Pass;
    type Error = OpError;

    fn part(&self, x: &Rows) -> Result<Branches<f32>, OpError> {
        Ok([x.clone(), x.clone()])
    }

    fn part_back(&self, _: &Pass, _: &Rows, _: &Branches<f32>, _: &mut Gradients<f32, Cpu>) -> Result<(), OpError> {
        Ok(())
    }

    fn join(&self, _: &Pass, [body, skip]: &Branches<f32>) -> Result<Rows, OpError> {
        let (samples, features) = *body.shape();
        let floor = if self.relu { 0.0 } else { f32::NEG_INFINITY };
        let sums = values(body).iter().zip(values(skip)).map(|(a, b)| (a + b).max(floor));
        from_rows(body.device(), samples, features, sums.collect())
    }

    fn join_back(
        &self,
        _: &Pass,
        ways: &Branches<f32>,
        y: &Rows,
        gradients: &mut Gradients<f32, Cpu>,
    ) -> Result<(), OpError> {
        let mut dy = take_gradient(gradients, y)?;
        if self.relu {
            bias_relu::cut_gradient(&mut dy, values(y));
        }
        for way in ways {
            for (dx, dy) in gradient_of(gradients, way)?.iter_mut().zip(&dy) {
                *dx += dy;
            }
        }
        Ok(())
    }
}
