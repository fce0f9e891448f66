//! Result of one run of a study, as one line of the study's `runs.jsonl`.

use std::collections::BTreeMap;

use protocol::stats::RunFigures;
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::plan::Planned;
use crate::settings::job_file;

/// Record of one run in a study or report: its plan, and its result or its error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) experiment: String,
    /// Number of nodes that the plan of the run asks for.
    pub(crate) nodes: usize,
    /// Settings of the run's job, by key.
    pub(crate) job: BTreeMap<String, String>,
    pub(crate) machine: Machine,
    /// Measurements of the run; `None` if it failed.
    pub(crate) result: Option<Measured>,
    /// Reason for which the run failed, if it did.
    pub(crate) error: Option<String>,
    /// Id of a single run that belongs to no study; empty for the runs of a study.
    #[serde(skip)]
    pub(crate) run: String,
}

/// Measurements of a finished run: a subset of the run's result line, with the same field names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// None if the model has no accuracy.
    pub(crate) accuracy: Option<f64>,
    /// Mean absolute error of a model that predicts numbers; `accuracy` is R² then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mae: Option<f64>,
    pub(crate) loss: Option<f64>,
    pub(crate) samples: u64,
    pub(crate) seconds: f64,
    pub(crate) samples_per_second: f64,
    /// Number of nodes that took part in the run to its end.
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

/// One evaluation of a run's model. A loss that is not finite is `None`, because JSON cannot express it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) samples: u64,
    pub(crate) seconds: f64,
    pub(crate) accuracy: Option<f64>,
    pub(crate) loss: Option<f64>,
}

impl Measured {
    /// Returns the time of the first evaluation that reached this accuracy, in seconds of the run.
    pub(crate) fn seconds_to(&self, target: f64) -> Option<f64> {
        let has_reached = |one: &&Point| one.accuracy.is_some_and(|accuracy| accuracy >= target);
        let reached = self.evaluations.iter().find(has_reached);
        reached.map(|one| one.seconds)
    }
}

impl Row {
    /// Returns true if this record is that of the planned run.
    pub(crate) fn is_of(&self, planned: &Planned) -> bool {
        (&self.experiment, self.nodes) == (&planned.experiment, planned.nodes)
            && self.job == job_file::keys_of(&planned.job)
    }

    /// Returns the run's measurements if they can be compared: all nodes were there to the end, and their replicas
    /// agree.
    pub(crate) fn sound(&self) -> Option<&Measured> {
        self.result.as_ref().filter(|_| self.trouble().is_none())
    }

    /// Returns the reason for which the run is excluded from averages, if there is one.
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

    /// Returns the value of a key of the run's job, or an empty string if the job does not have it.
    pub(crate) fn key(&self, name: &str) -> &str {
        self.job.get(name).map_or("", String::as_str)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Builds the record of a run with these settings and results.
    pub(crate) fn row(exchange: &str, nodes: usize, seed: u32, accuracy: f64, seconds: f64) -> Row {
        let at = |part: f64| Point {
            samples: (100.0 * part) as u64,
            seconds: seconds * part,
            accuracy: Some(accuracy * part),
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
                accuracy: Some(accuracy),
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
    fn a_run_without_accuracy_is_read_and_reaches_no_target() {
        let points = ["null", "0.5"].map(|accuracy| {
            let text = format!("{{\"samples\": 5, \"seconds\": 1.5, \"accuracy\": {accuracy}, \"loss\": 2.5}}");
            serde_json::from_str::<Point>(&text).unwrap()
        });
        assert_eq!(points.map(|point| point.accuracy), [None, Some(0.5)]);
        let run = Measured {
            evaluations: points[..1].to_vec(),
            ..Measured::default()
        };
        assert_eq!(run.seconds_to(0.0), None);
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
