//! Strom's emission (2015): after every step, each weight whose residual is τ or more leaves as a change of ±τ.

use protocol::job::optimiser::Rule;
use protocol::job::{Job, Threshold};
use protocol::log::batch::Payload;
use protocol::weights::lattice::{Range, Tau};

use super::tau_controller::TauController;
use super::{Emission, Leaving, NextStep, Plan};
use crate::learning::multi_worker::Settings;
use crate::trainer::{TrainError, Trainer};

/// Emission of the strategy `strom`: a worker sends one-bit weight changes of ±τ, with a τ that is fixed or follows a
/// target density.
pub(super) struct Strom {
    /// Fraction of the weights that a batch is to change, which τ is adjusted to reach; `None` if τ is fixed.
    target: Option<f64>,
    controller: TauController,
    learning_rate: f64,
}

impl Strom {
    /// Creates the rule by which a worker sends weight changes of ±τ. Unless τ is fixed, the target density depends on
    /// the optimiser rule, the number of weights and the number of workers (`slots`).
    pub(super) fn new(threshold: Threshold, rule: Rule, weights: usize, slots: usize) -> Self {
        let (target, controller) = match threshold {
            Threshold::Fixed(tau) => (None, TauController::fixed(tau)),
            Threshold::Density(density) => (
                Some(density.among(rule, weights, slots, None)),
                TauController::following(),
            ),
        };
        Self {
            target,
            controller,
            learning_rate: 0.0,
        }
    }

    /// Takes the changes of a run's first batch out of the residual. Until the first step the size of updates is
    /// unknown; then the residual shows it, and τ starts at the value at which the target fraction of the weights
    /// leaves at once.
    fn release_first<T: Trainer>(
        &mut self,
        trainer: &mut T,
        changes: &mut Vec<u32>,
    ) -> Result<(Tau, Range), TrainError> {
        let Some(target) = self.target else {
            return Ok((Tau::ONE_STEP, Range::Safe));
        };
        let quantile = trainer.residual_quantile(target)?;
        if !quantile.is_finite() {
            return Err(TrainError::NotFinite);
        }
        self.controller.start(quantile, target, self.learning_rate);
        let tau = self.controller.tau().unwrap_or(Tau::ONE_STEP);
        let range = trainer.release(tau, changes)?;
        Ok((tau, range))
    }
}

impl<T: Trainer> Emission<T> for Strom {
    fn settings(&self, job: &Job, slots: usize) -> Settings {
        Settings::adding_up(job, slots)
    }

    /// False until the first batch has left: it must leave after the first step, because its residual determines the
    /// first τ.
    fn can_keep(&self) -> bool {
        self.controller.tau().is_some()
    }

    fn plan(&mut self, next: NextStep) -> Plan {
        self.learning_rate = next.learning_rate;
        self.controller.follow_rate(next.learning_rate);
        if next.throttle {
            return Plan::Keep;
        }
        Plan::Leave {
            compare: self.controller.tau(),
        }
    }

    fn leave(&mut self, trainer: &mut T, compared: Option<Tau>, mut changes: Vec<u32>) -> Result<Leaving, TrainError> {
        let (tau, range) = match compared {
            Some(tau) => (tau, Range::Safe),
            None => self.release_first(trainer, &mut changes)?,
        };
        if let Some(target) = self.target {
            let density = changes.len() as f64 / trainer.weights() as f64;
            self.controller.observe(density, target);
        }
        let payload = Payload::Steps { tau, changes };
        Ok(Leaving { payload, range })
    }

    /// Returns nothing: differences smaller than τ never leave, and are dropped when the worker ends its stream of
    /// batches.
    fn rest(&mut self, _trainer: &mut T) -> Result<Option<Leaving>, TrainError> {
        Ok(None)
    }

    fn keeps_residual(&self) -> bool {
        true
    }

    fn state(&self) -> Vec<f64> {
        self.controller.stands_at().map_or_else(Vec::new, |at| at.to_vec())
    }

    fn restore(&mut self, state: &[f64]) {
        if let Ok(at) = state.try_into() {
            self.controller.go_on_from(at);
        }
    }
}
