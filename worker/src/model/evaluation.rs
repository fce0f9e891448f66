//! How good a model is, from sums over samples.

use protocol::stats::measured::Scores;

use crate::model::ops::loss::EvalSums;
use crate::task::objective::Objective;

/// Samples per minibatch: large enough for full speed, small enough for the cache.
pub(crate) const MINIBATCH: usize = 128;
/// From this many samples on an evaluation can tell how it will end.
const SURE_SAMPLES: usize = 1000;
/// How many standard deviations make sure.
const SURE_DEVIATIONS: f64 = 4.0;

/// How good a model is on samples it was not trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The share of samples whose largest logit is at their label; of numbers, R².
    pub accuracy: f64,
    /// The mean loss.
    pub loss: f64,
    /// How far numbers are off, in their own units; none where there are classes.
    pub mae: Option<f64>,
    /// How many samples there were.
    pub samples: usize,
}

impl Evaluation {
    /// What a judgement of so many samples says.
    #[must_use]
    pub(crate) fn of(objective: &Objective, all: &EvalSums, samples: usize) -> Self {
        let count = samples as f64;
        let (accuracy, mae) = match objective {
            Objective::Classes { .. } => (all.correct as f64 / count, None),
            Objective::Numbers { units, .. } => {
                let errors = all.errors.iter().zip(&**units);
                let off = errors.map(|(errors, &unit)| errors.absolute / count * f64::from(unit));
                let mae = off.sum::<f64>() / units.len().max(1) as f64;
                (all.r2(samples), Some(mae))
            }
        };
        Self {
            accuracy,
            loss: all.loss / count,
            mae,
            samples,
        }
    }

    /// What is told of it.
    #[must_use]
    pub fn scores(&self) -> Scores {
        Scores {
            accuracy: self.accuracy,
            loss: self.loss,
            mae: self.mae,
        }
    }

    /// Whether the accuracy on all samples cannot be expected to reach a target any more, from that on the first ones.
    #[must_use]
    pub fn rules_out(&self, target: f64) -> bool {
        // How far R² may still go is not known.
        if self.mae.is_some() {
            return false;
        }
        let accuracy = self.accuracy;
        let deviation = (accuracy * (1.0 - accuracy) / self.samples.max(1) as f64).sqrt();
        self.samples >= SURE_SAMPLES && accuracy + SURE_DEVIATIONS * deviation < target
    }
}
