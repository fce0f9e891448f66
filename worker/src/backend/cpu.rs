//! The CPU backend: dfdx on one or more cores.

use std::sync::Arc;
use std::time::Duration;

use dfdx::prelude::*;
use protocol::changes::apply_to_weights;
use protocol::clip::{clip_factor, sum_of_squares};
use protocol::digest::Digest;
use protocol::lattice::{Range, Tau, weight_of};
use protocol::model::Layout;
use protocol::optimiser::{Rule, Scale};
use protocol::rng::splitmix64;

use super::update_pass::UpdateState;
use crate::dataset::Dataset;
use crate::network::{Mode, Network};
use crate::ops::{OpError, Parameters, Threads, from_rows, loss, values};
use crate::thread_time::ThreadTimer;
use crate::trainer::{StepControl, StepReport, TrainError, Trainer};

/// How often the plain optimiser pass is timed; the fastest counts.
const CALIBRATIONS: usize = 5;
/// What is written between two of them: more than the caches that one core has for itself.
const PASSING_BYTES: usize = 16 << 20;

/// Trains on the CPU.
pub struct CpuTrainer {
    device: Cpu,
    dataset: Arc<Dataset>,
    network: Network,
    parameters: Parameters,
    gradient: Vec<f32>,
    state: UpdateState,
    /// What decides dropout: different for every worker, so that replicas do not drop alike.
    dropout_seed: u64,
    /// What a plain optimiser's pass over the weights takes: the part of ours that is not exchange.
    plain_pass: Duration,
    labels: Vec<u32>,
}

impl CpuTrainer {
    /// A trainer with the given weights and an empty residual.
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
            state: UpdateState::new(rule, weights.len(), threads),
            parameters: Parameters::new(&device, weights)?,
            network: Network::new(layout, threads),
            device,
            dataset,
            dropout_seed,
            plain_pass: Duration::ZERO,
            labels: Vec::new(),
        };
        trainer.calibrate();
        Ok(trainer)
    }

    /// Times the plain pass as it would run within a step: after other arrays have passed through the caches. With a
    /// gradient of zeros it moves nothing, neither weights nor state.
    fn calibrate(&mut self) {
        let mut passing = vec![0u8; PASSING_BYTES];
        let scale = Scale {
            learning_rate: 1.0,
            clip: 1.0,
            step: 1,
        };
        let timed = (0..CALIBRATIONS).map(|round| {
            passing.fill(round as u8);
            std::hint::black_box(&mut passing);
            let timer = ThreadTimer::start();
            self.state
                .plain_pass(&self.gradient, scale, self.parameters.values_mut());
            timer.elapsed()
        });
        self.plain_pass = timed.min().unwrap_or_default();
    }

    /// Forward and backward: the loss, and the gradient in `self.gradient`.
    fn compute(&mut self, samples: &[u32], key: u64) -> Result<f32, TrainError> {
        let features = self.dataset.train.features();
        let mut inputs = Vec::new();
        self.dataset.train.gather(samples, &mut inputs, &mut self.labels);
        let x = from_rows(&self.device, samples.len(), features, inputs)?;
        let tape = self.parameters.lend_gradient(std::mem::take(&mut self.gradient))?;
        let logits = self
            .network
            .forward(&self.parameters, x.traced(tape), Mode::Training { key })?;
        let loss = loss::softmax_cross_entropy(logits, &self.labels)?;
        let value = values(&loss)[0];
        self.gradient = self.parameters.take_gradient(loss.try_backward()?)?;
        Ok(value)
    }
}

impl Trainer for CpuTrainer {
    fn weights(&self) -> usize {
        self.parameters.values().len()
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
        let scale = Scale {
            learning_rate: control.learning_rate as f32,
            clip,
            step: control.step,
        };
        self.state
            .emit(&self.gradient, control.rule, scale, control.tau, words)?;
        let range = match control.tau {
            Some(tau) => apply_to_weights(words, tau, self.parameters.values_mut())?,
            None => Range::Safe,
        };
        Ok(StepReport {
            loss,
            range,
            training_time: computed + self.plain_pass.min(updating.elapsed()),
        })
    }

    fn release(&mut self, tau: Tau, words: &mut Vec<u32>) -> Result<Range, TrainError> {
        self.state.release(tau, words)?;
        Ok(apply_to_weights(words, tau, self.parameters.values_mut())?)
    }

    fn apply(&mut self, words: &[u32], tau: Tau) -> Result<Range, TrainError> {
        Ok(apply_to_weights(words, tau, self.parameters.values_mut())?)
    }

    fn load(&mut self, counts: &[i32]) -> Result<(), TrainError> {
        assert_eq!(counts.len(), self.weights(), "a ledger of another model");
        for (weight, &count) in self.parameters.values_mut().iter_mut().zip(counts) {
            *weight = weight_of(count);
        }
        Ok(())
    }

    fn copy_weights(&self) -> Result<Vec<f32>, TrainError> {
        Ok(self.parameters.values().to_vec())
    }

    fn digest(&self) -> Result<Option<Digest>, TrainError> {
        Ok(Digest::of_weights(self.parameters.values()))
    }

    fn residual_quantile(&self, fraction: f64) -> Result<f64, TrainError> {
        Ok(self.state.residual_quantile(fraction))
    }

    fn residual_norm(&self) -> Result<f64, TrainError> {
        Ok(self.state.residual_norm())
    }
}

impl From<OpError> for TrainError {
    fn from(error: OpError) -> Self {
        Self::Device(error.to_string())
    }
}
