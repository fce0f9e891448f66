//! The CPU backend: gradients by dfdx on one or more cores, and one fused pass over the weights for optimiser and
//! comparison.

mod muon;
mod pass;
mod stage;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use dfdx::prelude::Cpu;
use protocol::job::augment::Augment;
use protocol::job::model::Layout;
use protocol::job::optimiser::{Muon, Rule};
use protocol::rng::splitmix64;
use protocol::weights::changes::{apply_to_both, apply_to_weights, check_range};
use protocol::weights::contribution::Contribution;
use protocol::weights::dense::Dense;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::{Range, Tau, weight_of};
use protocol::weights::sums::Sums;

use self::muon::Directions;
use self::pass::{Copies, Pass};
pub use self::stage::{CpuLayers, CpuStageTrainer};
use super::replica::Replica;
use super::turns::eager_tensors;
use super::{Announced, Array, Backend, Compare, Update, Updated};
use crate::dataset::{Answers, Dataset};
use crate::learning::clip::clip_by;
use crate::learning::muon::MuonBlocks;
use crate::machine::parallel::Threads;
use crate::machine::thread_time::ThreadTimer;
use crate::model::network::Network;
use crate::model::ops::{self, CpuLayer, MeanLoss, OpError, Parameters, from_rows, values};
use crate::model::program::{ImageOrder, Program};
use crate::module::{CheckedNetwork, Rows};
use crate::task::augmentation;
use crate::task::objective::Task;
use crate::trainer::gradient_source::GradientSource;
use crate::trainer::quantise::Reached;
use crate::trainer::{TrainError, difference};

/// A trainer of a whole network on the CPU.
pub type CpuTrainer = Replica<CpuBackend>;
/// A trainer of a module (a network of the user's code) on the CPU.
pub type CpuModuleTrainer = Replica<CpuBackend<Model<CheckedNetwork>>>;

/// A source of gradients on the CPU: a whole network, or one stage of a pipeline.
pub trait CpuGradientSource:
    GradientSource<Weights = Parameters, Gradient = Vec<f32>, Loss = f32, Shared = [f32]>
{
}

impl<S: GradientSource<Weights = Parameters, Gradient = Vec<f32>, Loss = f32, Shared = [f32]>> CpuGradientSource for S {}

/// Training backend for the CPU: a worker's weights and gradient in main memory, with the source of its gradients.
pub struct CpuBackend<S = Model> {
    gradient_source: S,
    own: Parameters,
    shared: Vec<f32>,
    gradient: Vec<f32>,
    /// Mean loss of the minibatch that `gradient` was computed on.
    loss: f32,
    /// Makes gradients orthogonal if the optimiser needs that (Muon); else `None`.
    directions: Option<Directions>,
    pass: Pass,
}

/// A network on the CPU that can go back from the loss of some samples to all weights.
pub trait CpuNetwork {
    /// Runs one forward and backward pass over the training samples at `indices`, and replaces the contents of
    /// `gradient`. Returns the mean loss.
    fn descend(
        &mut self,
        source: &mut MinibatchSource,
        parameters: &Parameters,
        indices: &[u32],
        key: u64,
        gradient: &mut Vec<f32>,
    ) -> Result<f32, TrainError>;
}

/// Source of a network's minibatches: the dataset, its augmentation, and the loss with the newest minibatch's answers.
pub struct MinibatchSource {
    dataset: Arc<Dataset>,
    augment: Augment,
    loss: MeanLoss,
}

impl MinibatchSource {
    /// Returns the inputs of the training samples at `indices`, augmented, row by row; their answers go into the loss.
    fn gather(&mut self, indices: &[u32], key: u64) -> Vec<f32> {
        augmentation::gathered(&self.dataset, self.augment, indices, key, &mut self.loss.answers)
    }
}

/// A whole network, with the samples that it is trained on.
pub struct Model<N = Network<CpuLayer>> {
    source: MinibatchSource,
    network: N,
    /// Most samples whose gradient is computed at once; a larger minibatch is split, and the gradients are summed.
    minibatch: usize,
    /// Buffer in which the gradients of a split minibatch are summed.
    sum: Vec<f32>,
}

impl CpuTrainer {
    /// Makes a trainer whose own and shared weights both begin as `counts`: the initial weights as multiples of the
    /// step between two neighbouring values.
    pub fn new(
        task: impl std::convert::Into<Task>,
        layout: &Layout,
        counts: &[i32],
        rule: Rule,
        dropout_seed: u64,
        threads: Threads,
    ) -> Result<Self, TrainError> {
        let network = ops::network(Program::new(layout, ImageOrder::BySample), threads);
        Self::of_network(network, task, layout, counts, rule, dropout_seed, threads)
    }
}

impl<N: CpuNetwork> Replica<CpuBackend<Model<N>>> {
    /// Makes a trainer of any network on the CPU, whose weights begin as `counts` in the order of the layout's tensors.
    pub fn of_network(
        network: N,
        task: impl std::convert::Into<Task>,
        layout: &Layout,
        counts: &[i32],
        rule: Rule,
        dropout_seed: u64,
        threads: Threads,
    ) -> Result<Self, TrainError> {
        let Task {
            dataset,
            objective,
            augment,
        } = task.into();
        let loss = MeanLoss {
            objective,
            answers: Answers::default(),
        };
        let model = Model {
            source: MinibatchSource { dataset, augment, loss },
            network,
            minibatch: usize::MAX,
            sum: Vec::new(),
        };
        let parts = |muon| MuonBlocks::new(layout, muon);
        Self::on(
            CpuBackend::of(model, layout, counts, rule, parts, threads)?,
            rule,
            dropout_seed,
        )
    }

    /// Limits the number of samples whose gradient is computed at once.
    #[must_use]
    pub fn in_minibatches_of(self, minibatch: usize) -> Self {
        self.with_backend(|backend| backend.gradient_source.minibatch = minibatch.max(1))
    }
}

impl<N: CpuNetwork> GradientSource for Model<N> {
    type Weights = Parameters;
    type Gradient = Vec<f32>;
    type Loss = f32;
    type Shared = [f32];

    /// Computes the mean gradient over all samples, in pieces of at most `minibatch` samples.
    fn gradient(
        &mut self,
        parameters: &Parameters,
        samples: &[u32],
        key: u64,
        gradient: &mut Vec<f32>,
    ) -> Result<f32, TrainError> {
        if samples.len() <= self.minibatch {
            return self
                .network
                .descend(&mut self.source, parameters, samples, key, gradient);
        }
        let mut sum = std::mem::take(&mut self.sum);
        sum.clear();
        sum.resize(gradient.len(), 0.0);
        let mut loss = 0.0;
        for (number, part) in (0..).zip(samples.chunks(self.minibatch)) {
            let share = part.len() as f32 / samples.len() as f32;
            // Each piece has its own dropout.
            let key = splitmix64(key ^ number);
            loss += share
                * self
                    .network
                    .descend(&mut self.source, parameters, part, key, gradient)?;
            for (sum, gradient) in sum.iter_mut().zip(&*gradient) {
                *sum += share * gradient;
            }
        }
        std::mem::swap(gradient, &mut sum);
        self.sum = sum;
        Ok(loss)
    }
}

impl CpuNetwork for Network<CpuLayer> {
    fn descend(
        &mut self,
        source: &mut MinibatchSource,
        parameters: &Parameters,
        indices: &[u32],
        key: u64,
        gradient: &mut Vec<f32>,
    ) -> Result<f32, TrainError> {
        let inputs = source.gather(indices, key);
        let x = from_rows(
            &Cpu::default(),
            indices.len(),
            inputs.len() / indices.len().max(1),
            inputs,
        )?;
        let pass = ops::Pass::new(parameters.clone(), key, ops::Statistics::Minibatch);
        let lent = parameters.lend_gradient(std::mem::take(gradient))?;
        let descent = Network::descend(self, &source.loss, &pass, x, lent)?;
        *gradient = parameters.take_gradient(descent.gradients)?;
        Ok(values(&descent.loss)[0])
    }
}

impl CpuNetwork for CheckedNetwork {
    fn descend(
        &mut self,
        source: &mut MinibatchSource,
        parameters: &Parameters,
        indices: &[u32],
        key: u64,
        gradient: &mut Vec<f32>,
    ) -> Result<f32, TrainError> {
        if let Some(positions) = source.dataset.train.positions_at(indices) {
            return Ok(self.step(parameters.values(), &positions, key, gradient)?);
        }
        let inputs = source.gather(indices, key);
        let rows = Rows {
            values: &inputs,
            samples: indices.len(),
        };
        let mut outputs = self.forward(parameters.values(), rows, key)?;
        let loss = source.loss.replace_by_gradient(&mut outputs);
        self.backward(indices.len(), &outputs, gradient)?;
        Ok(loss)
    }
}

impl<S: CpuGradientSource> CpuBackend<S> {
    /// Makes a backend whose own and shared weights both begin as `counts`: the initial weights as multiples of the
    /// step between two neighbouring values. `parts` cuts the model's matrices into blocks for Muon.
    pub(crate) fn of(
        gradient_source: S,
        layout: &Layout,
        counts: &[i32],
        rule: Rule,
        parts: impl FnOnce(Muon) -> MuonBlocks,
        threads: Threads,
    ) -> Result<Self, TrainError> {
        let pass = Pass::new(rule.state_arrays(), counts.len(), eager_tensors(layout), threads);
        let pass = pass.without_decay_of(layout.undecayed());
        let mut backend = Self::new(gradient_source, counts, pass)?;
        if let Rule::Muon(muon) = rule {
            backend.directions = Some(Directions::new(parts(muon), threads));
        }
        Ok(backend)
    }

    fn new(gradient_source: S, counts: &[i32], pass: Pass) -> Result<Self, TrainError> {
        let weights: Vec<f32> = counts.iter().copied().map(weight_of).collect();
        Ok(Self {
            gradient_source,
            gradient: vec![0.0; weights.len()],
            loss: 0.0,
            own: Parameters::new(&Cpu::default(), weights.clone())?,
            shared: weights,
            directions: None,
            pass,
        })
    }

    /// Moves the shared weights by the changes that a step emits; fails and moves none if one would leave the allowed
    /// range.
    fn leave(&mut self, changes: &[u32], tau: Tau) -> Result<Range, TrainError> {
        check_range(changes, tau, &self.shared)?;
        Ok(apply_to_weights(changes, tau, &mut self.shared)?)
    }
}

impl<S: CpuGradientSource> Backend for CpuBackend<S> {
    const WORKS_ALONE: bool = S::WORKS_ALONE;

    fn weights(&self) -> usize {
        self.shared.len()
    }

    fn gradient(&mut self, samples: &[u32], key: u64) -> Result<(), TrainError> {
        let loss = self
            .gradient_source
            .gradient(&self.own, samples, key, &mut self.gradient);
        // Even after an error the gradient must have its full length.
        self.gradient.resize(self.shared.len(), 0.0);
        self.loss = loss?;
        if self.loss.is_finite() {
            Ok(())
        } else {
            Err(TrainError::NotFinite)
        }
    }

    fn update(
        &mut self,
        update: &Update,
        _next: Option<Announced<'_>>,
        changes: &mut Vec<u32>,
    ) -> Result<Updated, TrainError> {
        let mut clip = clip_by(&self.gradient, update.clip)?;
        let mut making = Duration::ZERO;
        if let (Some(directions), Some(orthogonal)) = (&mut self.directions, update.orthogonal) {
            let timer = ThreadTimer::start();
            let (first, second) = (&mut self.pass.first[..], &mut self.pass.second[..]);
            directions.replace(&mut self.gradient, first, second, clip, orthogonal);
            clip = 1.0;
            making = timer.elapsed();
        }
        let timer = ThreadTimer::start();
        let copies = Copies {
            own: self.own.values_mut(),
            shared: &self.shared,
        };
        let plain = self.pass.update(&self.gradient, update, clip, copies, changes)?;
        let range = match &update.compare {
            Some(compare) => self.leave(changes, compare.tau)?,
            None => Range::Safe,
        };
        Ok(Updated {
            loss: self.loss,
            range,
            directions: making,
            exchange: plain.map(|plain| timer.elapsed().saturating_sub(plain)),
        })
    }

    fn release(&mut self, compare: &Compare, changes: &mut Vec<u32>) -> Result<Range, TrainError> {
        self.pass.release(self.own.values(), &self.shared, compare, changes)?;
        self.leave(changes, compare.tau)
    }

    fn take(
        &mut self,
        window: std::ops::Range<usize>,
        ahead: f32,
        contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError> {
        // Own weights look ahead only where workers contribute their whole difference.
        if contribution != Contribution::ALL || ahead == 0.0 {
            let own = &mut self.own.values_mut()[window.clone()];
            return difference::take_contribution(own, &mut self.shared[window.clone()], window.start, contribution);
        }
        let velocity = self.pass.first.get(window.clone()).unwrap_or_default();
        let reached = Reached::new(&self.own.values()[window.clone()], ahead, velocity);
        difference::take(reached, &mut self.shared[window.clone()], window.start)
    }

    fn apply(&mut self, changes: &[u32], tau: Tau) -> Result<Range, TrainError> {
        Ok(apply_to_both(changes, tau, &mut self.shared, self.own.values_mut())?)
    }

    fn jump(&mut self, sums: &Sums) -> Result<Range, TrainError> {
        Ok(sums.apply_to_both(&mut self.shared, self.own.values_mut())?)
    }

    fn shift(&mut self, dense: &Dense) -> Result<Range, TrainError> {
        Ok(dense.apply_to_both(&mut self.shared, self.own.values_mut())?)
    }

    fn digest(&self) -> Result<Option<Digest>, TrainError> {
        Ok(Digest::of_weights(&self.shared))
    }

    fn residuals(&self, step: usize, ahead: f32) -> Result<Vec<f32>, TrainError> {
        let own = self.own.values();
        let residual = |index: usize| {
            let velocity = self.pass.first.get(index).copied().unwrap_or_default();
            own[index] + ahead * velocity - self.shared[index]
        };
        Ok((0..own.len()).step_by(step).map(residual).collect())
    }

    fn read(&self, array: Array) -> Result<Cow<'_, [f32]>, TrainError> {
        Ok(Cow::Borrowed(match array {
            Array::Own => self.own.values(),
            Array::Shared => &self.shared,
            Array::First => &self.pass.first,
            Array::Second => &self.pass.second,
        }))
    }

    fn write(&mut self, array: Array, values: Vec<f32>) -> Result<(), TrainError> {
        match array {
            Array::Own => self.own.values_mut().copy_from_slice(&values),
            Array::Shared => self.shared = values,
            Array::First => self.pass.first = values,
            Array::Second => self.pass.second = values,
        }
        Ok(())
    }
}

impl From<OpError> for TrainError {
    fn from(error: OpError) -> Self {
        Self::Device(error.to_string())
    }
}

#[cfg(test)]
pub(super) mod given {
    //! A CPU backend whose gradient is a constant.

    use super::*;

    /// Gradient source for tests that returns the same gradient for all weights and samples.
    pub(crate) struct Given(pub(crate) Vec<f32>);

    impl GradientSource for Given {
        type Weights = Parameters;
        type Gradient = Vec<f32>;
        type Loss = f32;
        type Shared = [f32];

        fn gradient(&mut self, _: &Parameters, _: &[u32], _: u64, gradient: &mut Vec<f32>) -> Result<f32, TrainError> {
            gradient.clone_from(&self.0);
            Ok(1.0)
        }
    }

    impl CpuBackend<Given> {
        /// Makes a test backend with zero weights and a constant gradient; weights in `eager` are compared in every
        /// step.
        pub(crate) fn given(
            gradient: Vec<f32>,
            rule: Rule,
            eager: Option<std::ops::Range<usize>>,
            threads: usize,
        ) -> Self {
            let weights = gradient.len();
            let pass = Pass::new(rule.state_arrays(), weights, eager.into_iter(), Threads(threads));
            Self::new(Given(gradient), &vec![0; weights], pass).unwrap()
        }

        /// Sets the largest number of changes in a batch.
        pub(crate) fn with_changes_max(mut self, changes_max: usize) -> Self {
            self.pass.changes_max = changes_max;
            self
        }
    }
}
