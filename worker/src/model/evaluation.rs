//! The quality of a model, computed from sums over samples.

use protocol::stats::measured::Scores;
use protocol::stats::named::NamedNumbers;

use crate::model::ops::loss::EvalSums;
use crate::task::objective::Objective;

/// Number of samples that are evaluated at once: large enough for full speed, small enough for the cache.
pub const MINIBATCH: usize = 128;
/// Fewest samples from which an evaluation in progress may predict that it misses its target.
const SURE_SAMPLES: usize = 1000;
/// An evaluation in progress is sure to miss its target if its accuracy so far is more than this many standard
/// deviations below the target.
const SURE_DEVIATIONS: f64 = 4.0;

/// Quality of a model on samples that it was not trained on.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Fraction of samples whose largest logit is at their label; for numbers, R². `None` for a model that has no
    /// accuracy, such as a language model.
    pub accuracy: Option<f64>,
    /// Mean loss of the evaluated samples.
    pub loss: f64,
    /// Mean absolute error in the numbers' own units; `None` for classes.
    pub mae: Option<f64>,
    /// Further numbers that the user's code has measured on the samples.
    pub named: NamedNumbers,
    /// Number of evaluated samples.
    pub samples: usize,
}

impl Evaluation {
    /// Computes the quality of a model from evaluation sums over this many samples.
    #[must_use]
    pub(crate) fn of(objective: &Objective, all: &EvalSums, samples: usize) -> Self {
        let count = samples as f64;
        let (accuracy, mae) = match objective {
            Objective::Classes { .. } => (all.correct as f64 / count, None),
            Objective::Module => unreachable!("a module's code measures its own samples"),
            Objective::Numbers { units, .. } => {
                let errors = all.errors.iter().zip(&**units);
                let off = errors.map(|(errors, &unit)| errors.absolute / count * f64::from(unit));
                let mae = off.sum::<f64>() / units.len().max(1) as f64;
                (all.r2(samples), Some(mae))
            }
        };
        Self {
            accuracy: Some(accuracy),
            loss: all.loss / count,
            mae,
            named: NamedNumbers::default(),
            samples,
        }
    }

    #[must_use]
    pub fn scores(&self) -> Scores {
        Scores {
            accuracy: self.accuracy,
            loss: self.loss,
            mae: self.mae,
            named: self.named.clone(),
        }
    }

    /// True if the accuracy on all samples is practically certain to miss a target, given the accuracy on the first
    /// samples. Says nothing about an evaluation without an accuracy.
    #[must_use]
    pub fn rules_out(&self, target: f64) -> bool {
        // R² may still change by any amount.
        let Some(accuracy) = self.accuracy.filter(|_| self.mae.is_none()) else {
            return false;
        };
        let deviation = (accuracy * (1.0 - accuracy) / self.samples.max(1) as f64).sqrt();
        self.samples >= SURE_SAMPLES && accuracy + SURE_DEVIATIONS * deviation < target
    }
}

/// Sums over samples of the numbers that a module's code measures, by name.
#[derive(Debug, Default)]
pub(crate) struct NamedSums {
    /// Name, sum, and the number of samples that the sum is over: a minibatch need not have all names.
    sums: Vec<(String, f64, usize)>,
    samples: usize,
}

impl NamedSums {
    /// Adds the means of a minibatch of this many samples.
    pub(crate) fn add(&mut self, means: Vec<(String, f64)>, samples: usize) {
        self.samples += samples;
        for (name, mean) in means {
            let sum = mean * samples as f64;
            match self.sums.iter_mut().find(|(known, ..)| *known == name) {
                Some((_, all, of)) => (*all, *of) = (*all + sum, *of + samples),
                None => self.sums.push((name, sum, samples)),
            }
        }
    }

    /// Returns the quality of the model on the samples so far.
    pub(crate) fn evaluation(&self) -> Evaluation {
        let means = || self.sums.iter().map(|(name, sum, of)| (name, sum / *of as f64));
        let mean = |wanted: &str| means().find(|(name, _)| *name == wanted).map(|(_, mean)| mean);
        let others = means().filter(|(name, _)| !["accuracy", "loss"].contains(&&***name));
        let named = NamedNumbers::new(others.take(NamedNumbers::MAX));
        Evaluation {
            accuracy: mean("accuracy"),
            loss: mean("loss").unwrap_or(f64::NAN),
            mae: None,
            // The names have been checked.
            named: named.unwrap_or_default(),
            samples: self.samples,
        }
    }
}
