//! A worker's replica on any backend: it holds two copies of the weights and does everything that is the same on all
//! devices.
//!
//! A worker moves its own copy of the weights as a plain optimiser would. In every step one part of it is compared with
//! the shared weights, and where the two differ by τ or more, changes leave. The parts take turns: a weight that takes
//! dozens of steps to move by τ can wait for three more, comparing costs a quarter, and changes that stand closer
//! together take fewer bits. Only small tensors (biases, last layers) are compared in every step: each of their weights
//! affects all outputs of the model, and moves often.

use std::time::{Duration, Instant};

use protocol::job::optimiser::Rule;
use protocol::weights::dense::Dense;
use protocol::weights::digest::Digest;
use protocol::weights::lattice::{Range, Tau};
use protocol::weights::sums::Sums;

use super::turns::Turns;
use super::{Announced, Array, Backend, Compare, Orthogonal, Update, residual};
use crate::learning::multi_worker::TURNS_MAX;
use crate::learning::optimiser::{Ahead, Factors, Formula};
use crate::machine::thread_time::ThreadTimer;
use crate::stage::{Advance, HoldsStage, StageModel};
use crate::trainer::gradient_source::step_key;
use crate::trainer::{GpuUse, Numbers, StateError, StepControl, StepReport, TrainError, Trainer, TrainerState};
use protocol::weights::contribution::Contribution;

/// Number of times that the optimiser pass is timed, with and without comparing the own with the shared weights; the
/// fastest time counts.
const CALIBRATIONS: usize = 5;
/// Bytes written between two timed passes to evict the weights from the caches: more than the private caches of one
/// core hold.
const PASSING_BYTES: usize = 16 << 20;

/// A trainer on a backend (CPU or GPU): it trains a worker's replica of the model.
pub struct Replica<B> {
    backend: B,
    /// Optimiser rule whose state arrays the backend keeps.
    rule: Rule,
    turns: Turns,
    /// Look-ahead of the own weights: the multiple of the velocity by which they are ahead of the optimiser's weights.
    ahead: f32,
    /// Seed of dropout. It differs between workers, so that replicas do not drop the same activations.
    dropout_seed: u64,
    /// Samples and number of the step after the next one, if they are announced.
    announced: Option<(Vec<u32>, u64)>,
    /// The next training step, if the backend has already begun to compute that step's gradient.
    begun: Option<LaunchedStep>,
    /// Thread time spent so far on the next step's gradient, where it is computed piece by piece (pipeline stages).
    advancing: Duration,
    /// Thread time that comparing own and shared weights adds to a step; used where the backend cannot measure it.
    exchange: Duration,
    /// Shortest wall-clock time of a training step so far. Of a longer step at most twice this time counts as GPU time,
    /// because the worker may have been paused.
    shortest: Duration,
}

/// A step whose gradient was begun ahead of time: its samples and number, and the moment from which on the device had no
/// other work.
struct LaunchedStep {
    samples: Vec<u32>,
    step: u64,
    since: Instant,
}

impl<B: Backend> Replica<B> {
    /// Makes a trainer on a backend whose own and shared weights are equal, and whose optimiser state and gradient are
    /// zeros.
    pub(crate) fn on(backend: B, rule: Rule, dropout_seed: u64) -> Result<Self, TrainError> {
        let mut replica = Self {
            turns: Turns::new(backend.weights()),
            backend,
            rule,
            ahead: 0.0,
            dropout_seed,
            announced: None,
            begun: None,
            advancing: Duration::ZERO,
            exchange: Duration::ZERO,
            shortest: Duration::MAX / 2,
        };
        replica.calibrate()?;
        Ok(replica)
    }

    /// Changes the trainer's backend by calling `change`, and returns the trainer.
    pub(super) fn with_backend(mut self, change: impl FnOnce(&mut B)) -> Self {
        change(&mut self.backend);
        self
    }

    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Measures the time that comparing own and shared weights adds to an optimiser pass, with cold caches as within a
    /// real step. The gradient is zero, so the passes change neither weights nor state.
    fn calibrate(&mut self) -> Result<(), TrainError> {
        let turn = self.turns.clone().next(TURNS_MAX);
        let compare = Compare {
            tau: Tau::ONE_STEP,
            ahead: 0.0,
            turn,
            eager: true,
        };
        let mut passing = vec![0u8; PASSING_BYTES];
        let mut fastest = [Duration::MAX; 2];
        for round in 0..CALIBRATIONS {
            for (fastest, compare) in fastest.iter_mut().zip([None, Some(compare.clone())]) {
                passing.fill(round as u8);
                std::hint::black_box(&mut passing);
                let update = Update {
                    formula: Formula::of(self.rule),
                    factors: Factors::new(self.rule, 1.0, 1, Ahead::default()),
                    clip: None,
                    orthogonal: None,
                    compare,
                };
                let timer = ThreadTimer::start();
                self.backend.update(&update, None, &mut Vec::new())?;
                *fastest = (*fastest).min(timer.elapsed());
            }
        }
        let [plain, full] = fastest;
        self.exchange = full.saturating_sub(plain);
        Ok(())
    }

    fn gradient(&mut self, samples: &[u32], step: u64) -> Result<(), TrainError> {
        self.backend.gradient(samples, step_key(self.dropout_seed, step))
    }

    /// Returns the part of `time`, the wall-clock time of a step, in which the backend worked. A worker may have been
    /// paused in a step; so at most twice the time of the shortest step counts.
    fn at_work(&mut self, time: Duration) -> Duration {
        self.shortest = self.shortest.min(time);
        time.min(2 * self.shortest)
    }

    fn residual_sample(&self) -> Result<Vec<f32>, TrainError> {
        let step = residual::sample_step(self.backend.weights());
        self.backend.residuals(step, self.ahead)
    }

    /// Returns the names of the state arrays that the optimiser rule uses.
    fn kept(&self) -> impl Iterator<Item = Array> + use<B> {
        [Array::First, Array::Second].into_iter().take(self.rule.state_arrays())
    }
}

impl<B: Backend> Trainer for Replica<B> {
    const BEGINS: bool = B::WORKS_ALONE;

    fn weights(&self) -> usize {
        self.backend.weights()
    }

    fn step(
        &mut self,
        samples: &[u32],
        control: StepControl,
        changes: &mut Vec<u32>,
    ) -> Result<StepReport, TrainError> {
        let timer = ThreadTimer::start();
        let (before, since) = match self.begun.take() {
            Some(begun) if begun.samples == samples && begun.step == control.step => (Duration::ZERO, begun.since),
            _ => {
                let since = Instant::now();
                self.gradient(samples, control.step)?;
                (std::mem::take(&mut self.advancing), since)
            }
        };
        let rate = control.learning_rate as f32;
        let ahead = Ahead {
            before: self.ahead,
            after: if control.rule.has_velocity() {
                control.look_ahead as f32 * rate
            } else {
                0.0
            },
        };
        self.ahead = ahead.after;
        let update = Update {
            formula: Formula::of(control.rule),
            factors: Factors {
                shrink: control.weight_decay as f32 * rate,
                ..Factors::new(control.rule, rate, control.step, ahead)
            },
            clip: control.clip,
            orthogonal: match control.rule {
                Rule::Muon(muon) => Some(Orthogonal {
                    muon,
                    step: control.step,
                }),
                _ => None,
            },
            compare: control.compare.map(|tau| Compare {
                tau,
                ahead: ahead.after,
                turn: self.turns.next(control.turns),
                eager: true,
            }),
        };
        let announced = self.announced.take();
        let next = announced.as_ref().map(|(samples, step)| Announced {
            samples,
            key: step_key(self.dropout_seed, *step),
        });
        let updated = self.backend.update(&update, next, changes)?;
        self.begun = announced.map(|(samples, step)| LaunchedStep {
            samples,
            step,
            since: Instant::now(),
        });
        let exchange = match update.compare {
            Some(_) => updated.exchange.unwrap_or(self.exchange),
            None => Duration::ZERO,
        };
        let waited = self.backend.gpu_time();
        let gpu = GpuUse {
            time: if B::WORKS_ALONE {
                self.at_work(since.elapsed())
            } else {
                waited
            },
            memory: self.backend.gpu_memory(),
        };
        Ok(StepReport {
            loss: updated.loss,
            range: updated.range,
            training_time: before + timer.elapsed().saturating_sub(exchange),
            directions: updated.directions,
            gpu,
        })
    }

    /// Returns the mean loss of some samples without training on them: computes a gradient, then runs an update that
    /// moves no weight.
    fn loss(&mut self, samples: &[u32]) -> Result<f32, TrainError> {
        self.begun = None;
        self.gradient(samples, 0)?;
        let update = Update {
            formula: Formula::of(Rule::Sgd),
            factors: Factors::new(Rule::Sgd, 0.0, 1, Ahead::default()),
            clip: None,
            orthogonal: None,
            compare: None,
        };
        Ok(self.backend.update(&update, None, &mut Vec::new())?.loss)
    }

    fn announce(&mut self, samples: &[u32], step: u64) {
        self.announced = B::WORKS_ALONE.then(|| (samples.to_vec(), step));
    }

    fn release(&mut self, tau: Tau, changes: &mut Vec<u32>) -> Result<Range, TrainError> {
        let compare = Compare {
            tau,
            ahead: self.ahead,
            turn: 0..self.backend.weights(),
            eager: false,
        };
        self.backend.release(&compare, changes)
    }

    fn take(
        &mut self,
        window: std::ops::Range<usize>,
        contribution: Contribution,
    ) -> Result<(Dense, Range), TrainError> {
        self.backend.take(window, self.ahead, contribution)
    }

    fn apply(&mut self, changes: &[u32], tau: Tau) -> Result<Range, TrainError> {
        self.backend.apply(changes, tau)
    }

    fn jump(&mut self, sums: &Sums) -> Result<Range, TrainError> {
        self.backend.jump(sums)
    }

    fn shift(&mut self, dense: &Dense) -> Result<Range, TrainError> {
        self.backend.shift(dense)
    }

    fn copy_weights(&self) -> Result<Vec<f32>, TrainError> {
        Ok(self.backend.read(Array::Shared)?.into_owned())
    }

    fn digest(&self) -> Result<Option<Digest>, TrainError> {
        self.backend.digest()
    }

    fn residual_quantile(&self, fraction: f64) -> Result<f64, TrainError> {
        Ok(residual::quantile(self.residual_sample()?, fraction))
    }

    fn residual_norm(&self) -> Result<f64, TrainError> {
        Ok(residual::norm(&self.residual_sample()?, self.backend.weights()))
    }

    /// Returns the state to save: the residual (own minus shared weights), its rounding remainder and the optimiser's
    /// arrays.
    fn state(&self) -> Result<TrainerState, TrainError> {
        let (own, shared) = (self.backend.read(Array::Own)?, self.backend.read(Array::Shared)?);
        let (residual, rest) = residual::taken_apart(&own, &shared);
        let mut arrays = vec![residual, rest];
        for array in self.kept() {
            arrays.push(self.backend.read(array)?.into_owned());
        }
        Ok(TrainerState {
            numbers: Numbers {
                ahead: self.ahead,
                turns: self.turns.done as u64,
            },
            arrays,
        })
    }

    fn restore(&mut self, state: TrainerState) -> Result<(), StateError> {
        state.check(2 + self.rule.state_arrays(), self.backend.weights())?;
        self.begun = None;
        let TrainerState { numbers, arrays } = state;
        let mut arrays = arrays.into_iter();
        let (residual, rest) = (arrays.next().unwrap_or_default(), arrays.next().unwrap_or_default());
        let shared = self.backend.read(Array::Shared)?;
        let mut own = vec![0.0; shared.len()];
        residual::put_together(&residual, &rest, &shared, &mut own);
        drop(shared);
        self.backend.write(Array::Own, own)?;
        for (array, kept) in self.kept().zip(arrays) {
            self.backend.write(array, kept)?;
        }
        self.ahead = numbers.ahead;
        self.turns.done = numbers.turns as usize;
        Ok(())
    }
}

impl<B: Backend + HoldsStage> HoldsStage for Replica<B> {
    type Layers = B::Layers;

    fn stage(&self) -> &StageModel<B::Layers> {
        self.backend.stage()
    }

    fn stage_mut(&mut self) -> &mut StageModel<B::Layers> {
        self.backend.stage_mut()
    }

    fn advance(&mut self) -> Result<Advance, TrainError> {
        let timer = ThreadTimer::start();
        let advanced = self.backend.advance();
        self.advancing += timer.elapsed();
        advanced
    }

    fn begin_evaluation(&mut self) -> Result<(), TrainError> {
        self.backend.begin_evaluation()
    }

    fn advance_evaluation(&mut self) -> Result<Advance, TrainError> {
        self.backend.advance_evaluation()
    }
}

impl From<TrainError> for StateError {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Device(reason) => Self::Device(reason),
            other => Self::Device(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
