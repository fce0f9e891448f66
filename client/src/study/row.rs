//! What one run of a study has come to, as its line in the study's folder has it.

use std::collections::BTreeMap;

use protocol::stats::RunFigures;
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::plan::Planned;
use crate::settings::job_file;

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) experiment: String,
    /// How many nodes were asked for.
    pub(crate) nodes: usize,
    /// The job's keys.
    pub(crate) job: BTreeMap<String, String>,
    pub(crate) machine: Machine,
    /// What was measured; none of a run that failed.
    pub(crate) result: Option<Measured>,
    /// Why it failed.
    pub(crate) error: Option<String>,
    /// The run's id, where it is a run of its own and no study's.
    #[serde(skip)]
    pub(crate) run: String,
}

/// What a study wants to know of a run that finished: a part of the line that it ended with, under the same names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) accuracy: f64,
    /// How far numbers are off, where they are predicted: the accuracy is R² then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mae: Option<f64>,
    pub(crate) loss: Option<f64>,
    pub(crate) samples: u64,
    pub(crate) seconds: f64,
    pub(crate) samples_per_second: f64,
    /// How many took part to the end.
    pub(crate) nodes: usize,
    pub(crate) missing: Vec<String>,
    pub(crate) replicas_agree: bool,
    pub(crate) repeated_samples: u64,
    pub(crate) digest: String,
    pub(crate) bytes_sent: u64,
    #[serde(flatten)]
    pub(crate) figures: RunFigures,
    #[serde(default)]
    pub(crate) evaluations: Vec<Point>,
    pub(crate) reason: String,
}

/// An evaluation. JSON has no word for a loss that is no number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) samples: u64,
    pub(crate) seconds: f64,
    pub(crate) accuracy: f64,
    pub(crate) loss: Option<f64>,
}

impl Measured {
    /// When it was first measured to be so good.
    pub(crate) fn seconds_to(&self, target: f64) -> Option<f64> {
        let reached = self.evaluations.iter().find(|one| one.accuracy >= target);
        reached.map(|one| one.seconds)
    }
}

impl Row {
    /// Whether this is what has come out of that run.
    pub(crate) fn is_of(&self, planned: &Planned) -> bool {
        (&self.experiment, self.nodes) == (&planned.experiment, planned.nodes)
            && self.job == job_file::keys_of(&planned.job)
    }

    /// What was measured, if it can be compared: everybody was there to the end, and all agree.
    pub(crate) fn sound(&self) -> Option<&Measured> {
        self.result.as_ref().filter(|_| self.trouble().is_none())
    }

    /// Why it is not to be averaged with others.
    pub(crate) fn trouble(&self) -> Option<String> {
        if let Some(error) = &self.error {
            return Some(format!("failed: {error}"));
        }
        let result = self.result.as_ref()?;
        if !result.replicas_agree {
            Some("the run's replicas ended with different weights".into())
        } else if !result.missing.is_empty() {
            Some(format!("the run lost these nodes: {}", result.missing.join(", ")))
        } else {
            None
        }
    }

    /// The value of one of its job's keys; empty if it has none.
    pub(crate) fn key(&self, name: &str) -> &str {
        self.job.get(name).map_or("", String::as_str)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run that came to this.
    pub(crate) fn row(exchange: &str, nodes: usize, seed: u32, accuracy: f64, seconds: f64) -> Row {
        let at = |part: f64| Point {
            samples: (100.0 * part) as u64,
            seconds: seconds * part,
            accuracy: accuracy * part,
            loss: Some(1.0),
        };
        Row {
            experiment: "e".into(),
            nodes,
            job: [("exchange", exchange.to_string()), ("seed", seed.to_string())]
                .map(|(key, value)| (key.into(), value))
                .into(),
            machine: Machine::default(),
            result: Some(Measured {
                accuracy,
                loss: Some(0.5),
                samples: 100,
                seconds,
                samples_per_second: 100.0 / seconds,
                nodes,
                replicas_agree: true,
                digest: "00".into(),
                reason: "trained".into(),
                evaluations: vec![at(0.5), at(1.0)],
                ..Measured::default()
            }),
            error: None,
            run: String::new(),
        }
    }

    #[test]
    fn runs_that_cannot_be_compared_say_why() {
        let good = row("strom", 3, 1, 0.9, 2.0);
        assert!(good.sound().is_some());
        let change = |change: fn(&mut Measured)| {
            let mut row = good.clone();
            change(row.result.as_mut().unwrap());
            (row.sound().is_none(), row.trouble().unwrap())
        };
        assert_eq!(
            change(|one| one.replicas_agree = false),
            (true, "the run's replicas ended with different weights".into())
        );
        assert_eq!(
            change(|one| one.missing.push("a".into())),
            (true, "the run lost these nodes: a".into())
        );
        let failed = Row {
            result: None,
            error: Some("no".into()),
            ..good
        };
        assert_eq!(failed.trouble().unwrap(), "failed: no");
    }

    #[test]
    fn a_loss_that_is_no_number_can_be_read() {
        let text = r#"{"samples": 5, "seconds": 1.5, "accuracy": 0.1, "loss": null}"#;
        let point: Point = serde_json::from_str(text).unwrap();
        assert_eq!((point.samples, point.loss), (5, None));
    }

    #[test]
    fn the_time_to_a_target_is_read_off_evaluations() {
        let row = row("strom", 3, 1, 0.9, 2.0);
        let result = row.sound().unwrap();
        assert_eq!(result.seconds_to(0.4), Some(1.0));
        assert_eq!(result.seconds_to(0.8), Some(2.0));
        assert_eq!(result.seconds_to(0.95), None);
    }
}
