//! The CPU backend: dfdx on one or more cores.

use std::sync::Arc;
use std::time::Duration;

use dfdx::prelude::*;
use protocol::changes::{apply_to_both, apply_to_weights, check_range};
use protocol::clip::{clip_factor, sum_of_squares};
use protocol::digest::Digest;
use protocol::lattice::{Range, Tau, weight_of};
use protocol::model::Layout;
use protocol::optimiser::{Rule, Scale};
use protocol::rng::splitmix64;
use protocol::sums::Sums;

use super::turns::eager_tensors;
use super::update_pass::{Copies, UpdateState};
use crate::dataset::Dataset;
use crate::network::Network;
use crate::ops::{CpuLayer, CrossEntropy, OpError, Parameters, Pass, Threads, from_rows, network, values};
use crate::program::{ImageOrder, Program};
use crate::thread_time::ThreadTimer;
use crate::trainer::{GpuUse, StateError, StepControl, StepReport, TrainError, Trainer, TrainerState};

/// How often the plain optimiser pass is timed; the fastest counts.
const CALIBRATIONS: usize = 5;
/// What is written between two of them: more than the caches that one core has for itself.
const PASSING_BYTES: usize = 16 << 20;

/// Trains on the CPU.
pub struct CpuTrainer {
    device: Cpu,
    dataset: Arc<Dataset>,
    network: Network<CpuLayer>,
    loss: CrossEntropy,
    /// The worker's own weights.
    parameters: Parameters,
    /// The shared weights.
    shared: Vec<f32>,
    gradient: Vec<f32>,
    state: UpdateState,
    /// What decides dropout: different for every worker, so that replicas do not drop alike.
    dropout_seed: u64,
    /// What a plain optimiser's pass over the weights takes, the part of ours that is not exchange, where the pass
    /// cannot tell itself.
    plain_pass: Duration,
}

impl CpuTrainer {
    /// A trainer whose copies both are the given weights.
    pub fn new(
        dataset: Arc<Dataset>,
        layout: &Layout,
        counts: &[i32],
        rule: Rule,
        dropout_seed: u64,
        threads: Threads,
    ) -> Result<Self, TrainError> {
        let device = Cpu::default();
        let weights: Vec<f32> = counts.iter().copied().map(weight_of).collect();
        let mut trainer = Self {
            gradient: vec![0.0; weights.len()],
            state: UpdateState::new(rule, weights.len(), eager_tensors(layout), threads),
            parameters: Parameters::new(&device, weights.clone())?,
            shared: weights,
            network: network(Program::new(layout, ImageOrder::BySample), threads),
            loss: CrossEntropy { labels: Vec::new() },
            device,
            dataset,
            dropout_seed,
            plain_pass: Duration::ZERO,
        };
        trainer.calibrate(rule)?;
        Ok(trainer)
    }

    /// Times the plain pass as it would run within a step: after other arrays have passed through the caches. With a
    /// gradient of zeros it moves nothing, neither weights nor state.
    fn calibrate(&mut self, rule: Rule) -> Result<(), TrainError> {
        let mut passing = vec![0u8; PASSING_BYTES];
        let mut fastest = Duration::MAX;
        for round in 0..CALIBRATIONS {
            passing.fill(round as u8);
            std::hint::black_box(&mut passing);
            let timer = ThreadTimer::start();
            self.pass((rule, Scale::new(1.0, 1.0, 1)), 0.0, None, &mut Vec::new())?;
            fastest = fastest.min(timer.elapsed());
        }
        self.plain_pass = fastest;
        Ok(())
    }

    /// The pass after a gradient; the changes that leave are in the shared weights. And what a plain pass would have
    /// taken.
    fn pass(
        &mut self,
        update: (Rule, Scale),
        look_ahead: f32,
        tau: Option<Tau>,
        words: &mut Vec<u32>,
    ) -> Result<(Range, Option<Duration>), TrainError> {
        let copies = Copies {
            own: self.parameters.values_mut(),
            shared: &self.shared,
        };
        let plain = self
            .state
            .step(&self.gradient, update, look_ahead, copies, tau, words)?;
        let range = match tau {
            Some(tau) => self.leave(words, tau)?,
            None => Range::Safe,
        };
        Ok((range, plain))
    }

    /// Applies what leaves, or nothing if that would take a weight out of the range.
    fn leave(&mut self, words: &[u32], tau: Tau) -> Result<Range, TrainError> {
        check_range(words, tau, &self.shared)?;
        Ok(apply_to_weights(words, tau, &mut self.shared)?)
    }

    /// Forward and backward: the loss, and the gradient in `self.gradient`.
    fn compute(&mut self, samples: &[u32], key: u64) -> Result<f32, TrainError> {
        let features = self.dataset.train.features();
        let mut inputs = Vec::new();
        self.dataset.train.gather(samples, &mut inputs, &mut self.loss.labels);
        let x = from_rows(&self.device, samples.len(), features, inputs)?;
        let pass = Pass {
            parameters: self.parameters.clone(),
            key,
        };
        let lent = self.parameters.lend_gradient(std::mem::take(&mut self.gradient))?;
        let descent = self.network.descend(&self.loss, &pass, x, lent)?;
        self.gradient = self.parameters.take_gradient(descent.gradients)?;
        Ok(values(&descent.loss)[0])
    }
}

impl Trainer for CpuTrainer {
    fn weights(&self) -> usize {
        self.shared.len()
    }

    fn step(&mut self, samples: &[u32], control: StepControl, words: &mut Vec<u32>) -> Result<StepReport, TrainError> {
        let computing = ThreadTimer::start();
        let loss = self.compute(samples, splitmix64(self.dropout_seed ^ control.step))?;
        if !loss.is_finite() {
            return Err(TrainError::NotFinite);
        }
        let clip = match control.clip {
            Some(max) => clip_factor(sum_of_squares(&self.gradient).sqrt(), Some(max)),
            None => 1.0,
        };
        if clip == 0.0 {
            // Its norm is infinite or no number.
            return Err(TrainError::NotFinite);
        }
        let computed = computing.elapsed();
        let updating = ThreadTimer::start();
        let scale = Scale::new(control.learning_rate as f32, clip, control.step);
        let (range, plain) = self.pass((control.rule, scale), control.look_ahead as f32, control.tau, words)?;
        Ok(StepReport {
            loss,
            range,
            training_time: computed + plain.unwrap_or(self.plain_pass).min(updating.elapsed()),
            gpu: GpuUse::default(),
        })
    }

    fn release(&mut self, tau: Tau, words: &mut Vec<u32>) -> Result<Range, TrainError> {
        self.state.release(self.parameters.values(), &self.shared, tau, words)?;
        self.leave(words, tau)
    }

    fn apply(&mut self, words: &[u32], tau: Tau) -> Result<Range, TrainError> {
        Ok(apply_to_both(
            words,
            tau,
            &mut self.shared,
            self.parameters.values_mut(),
        )?)
    }

    fn shift(&mut self, sums: &Sums) -> Result<Range, TrainError> {
        Ok(sums.apply_to_both(&mut self.shared, self.parameters.values_mut())?)
    }

    fn copy_weights(&self) -> Result<Vec<f32>, TrainError> {
        Ok(self.shared.clone())
    }

    fn digest(&self) -> Result<Option<Digest>, TrainError> {
        Ok(Digest::of_weights(&self.shared))
    }

    fn residual_quantile(&self, fraction: f64) -> Result<f64, TrainError> {
        Ok(self
            .state
            .residual_quantile(self.parameters.values(), &self.shared, fraction))
    }

    fn residual_norm(&self) -> Result<f64, TrainError> {
        Ok(self.state.residual_norm(self.parameters.values(), &self.shared))
    }

    fn state(&self) -> Result<TrainerState, TrainError> {
        Ok(self.state.save(self.parameters.values(), &self.shared))
    }

    fn restore(&mut self, state: TrainerState) -> Result<(), StateError> {
        let copies = Copies {
            own: self.parameters.values_mut(),
            shared: &self.shared,
        };
        self.state.restore(state, copies)
    }
}

impl From<OpError> for TrainError {
    fn from(error: OpError) -> Self {
        Self::Device(error.to_string())
    }
}
