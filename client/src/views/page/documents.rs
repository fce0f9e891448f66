//! The job and the result of an ended run, read from its folder.

use std::collections::BTreeMap;
use std::path::Path;

use protocol::job::{Job, JobDraft};
use protocol::stats::measured::{Evaluation, number_or_null};
use protocol::stats::{Applies, RUN_FIGURES, RunFigures, Unit};
use serde::{Deserialize, Serialize};

use crate::run::folder::{JOB, RESULT};
use crate::settings::job_file;
use crate::timeline::End;

/// A run's job and, unless the run failed, its result.
pub(super) struct RunDocuments {
    pub(super) job: Job,
    pub(super) result: Option<RunResult>,
}

/// The fields of `result.json` that pages show.
#[derive(Deserialize)]
pub(super) struct RunResult {
    pub(super) run: String,
    accuracy: Option<f64>,
    #[serde(default)]
    base_rate: Option<f64>,
    #[serde(default)]
    mae: Option<f64>,
    #[serde(deserialize_with = "number_or_null")]
    loss: f64,
    epochs: f64,
    samples: u64,
    #[serde(default)]
    repeated_samples: u64,
    seconds: f64,
    replicas_agree: bool,
    nodes: usize,
    missing: Vec<String>,
    digest: String,
    #[serde(default)]
    bytes_sent: u64,
    #[serde(default)]
    bytes_dense: u64,
    #[serde(flatten)]
    figures: RunFigures,
    #[serde(default)]
    pub(super) evaluations: Vec<Evaluation>,
    #[serde(default)]
    chosen: BTreeMap<String, serde_json::Value>,
    reason: String,
    #[serde(default)]
    warnings: Vec<String>,
    model: String,
}

impl RunDocuments {
    /// Reads a run's job and result from the run's folder. An error says what is wrong with the folder.
    pub(super) fn read(folder: &Path) -> Result<Self, String> {
        let text = |name: &str| {
            std::fs::read_to_string(folder.join(name)).map_err(|error| format!("{name} could not be read: {error}"))
        };
        let draft = JobDraft::from_toml(&text(JOB)?).map_err(|error| format!("{JOB}: {}", error.message()))?;
        let job = draft.resolve().map_err(|error| format!("{JOB}: {error}"))?;
        // A run that failed, or whose client died, has no result.
        let result = folder.join(RESULT).exists().then(|| text(RESULT)).transpose()?;
        let result = result.map(|text| serde_json::from_str(&text)).transpose();
        let result = result.map_err(|error| format!("{RESULT}: {error}"))?;
        Ok(Self { job, result })
    }

    /// Returns the number of the run's training samples; 0 if the run has no result.
    pub(super) fn train(&self) -> u64 {
        let trained = self.result.as_ref().filter(|result| result.epochs > 0.0);
        trained.map_or(0, |result| (result.samples as f64 / result.epochs).round() as u64)
    }

    pub(super) fn evaluations(&self) -> &[Evaluation] {
        self.result.as_ref().map_or(&[], |result| &result.evaluations)
    }

    /// Returns the outcome of the run from its result file; none if it has no result.
    pub(super) fn end(&self) -> Option<End> {
        self.result.as_ref().map(|result| End::Finished {
            accuracy: result.accuracy,
            mae: result.mae,
            loss: result.loss,
            samples: result.samples,
            seconds: result.seconds,
            agree: result.replicas_agree,
            nodes: result.nodes,
            missing: result.missing.clone(),
            digest: result.digest.clone(),
            reason: result.reason.clone(),
            model: result.model.clone(),
        })
    }

    /// Returns the settings, figures and warnings that a page shows beside the run's curves.
    pub(super) fn shown(&self) -> Outcome {
        let result = self.result.as_ref();
        let settings = job_file::keys_of(&self.job).into_iter().map(|(key, value)| Setting {
            chosen: result.is_some_and(|result| result.chosen.contains_key(&key)),
            key,
            value,
        });
        Outcome {
            settings: settings.collect(),
            figures: result.map_or_else(Vec::new, RunResult::figures),
            warnings: result.map_or_else(Vec::new, |result| result.warnings.clone()),
        }
    }
}

impl RunResult {
    /// Returns the figures of the whole run that pages show: those that apply to it and are not 0.
    fn figures(&self) -> Vec<OutcomeFigure> {
        let figure = |title, meaning, unit, value: Option<f64>| OutcomeFigure {
            title,
            meaning,
            unit,
            value: value.unwrap_or(0.0),
        };
        // A single node sends nothing to others.
        let several = self.nodes + self.missing.len() > 1;
        let bytes = |bytes: u64| Some(bytes as f64).filter(|_| several);
        let own = [
            figure(
                "base rate",
                "Accuracy of always guessing the most frequent class",
                Unit::Quality,
                self.base_rate,
            ),
            figure(
                "mean absolute error",
                "Mean absolute error of the predicted numbers, in their own units",
                Unit::Target,
                self.mae,
            ),
            figure(
                "trained twice",
                "Samples that were trained more than once, after a partition or the death of a node",
                Unit::Samples,
                Some(self.repeated_samples as f64),
            ),
            figure(
                "weight changes sent",
                "Bytes of batches that all nodes sent",
                Unit::Bytes,
                bytes(self.bytes_sent),
            ),
            figure(
                "as whole gradients",
                "Bytes that sending every step's gradient as f32 to every peer would have taken",
                Unit::Bytes,
                bytes(self.bytes_dense),
            ),
        ];
        let table = RUN_FIGURES.iter().filter_map(|one| {
            let title = one.study.or(one.title)?;
            let applies = several || one.applies != Applies::SeveralNodes;
            applies.then(|| figure(title, one.meaning, one.unit, (one.of)(&self.figures)))
        });
        own.into_iter()
            .chain(table)
            .filter(|figure| figure.value > 0.0)
            .collect()
    }
}

/// Settings, figures and warnings of an ended run, for the page.
#[derive(Serialize)]
pub(super) struct Outcome {
    settings: Vec<Setting>,
    figures: Vec<OutcomeFigure>,
    warnings: Vec<String>,
}

/// One setting of an ended run's job, for the page.
#[derive(Serialize)]
struct Setting {
    key: String,
    value: String,
    /// True if the nodes decided the setting, because the user had not set it.
    chosen: bool,
}

/// One figure of an ended run, as the page shows it.
#[derive(Serialize)]
struct OutcomeFigure {
    title: &'static str,
    meaning: &'static str,
    unit: Unit,
    value: f64,
}
