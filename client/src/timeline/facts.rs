//! Facts of a run: its settings, its phase and its end.

use protocol::job::Job;
use protocol::reasons::waiting::{self, WaitingFor};
use protocol::wire::control::{Phase, RunResult, RunStatus};
use protocol::wire::run_beat::StopReason;
use serde::Serialize;

use super::entries::TimelineEntry;

/// Settings and state of a run as its nodes describe them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Facts {
    pub(crate) run: String,
    pub(crate) data: String,
    pub(crate) model: String,
    pub(crate) optimiser: String,
    pub(crate) exchange: String,
    pub(crate) epochs: u32,
    /// Number of the run's training samples.
    pub(crate) train: u64,
    /// Name of the run's phase, or `finished` or `failed`.
    pub(crate) phase: &'static str,
    /// Reasons why the run waits, such as a silent node.
    pub(crate) waiting: Vec<WaitingFor>,
    pub(crate) end: Option<End>,
}

/// Outcome of a run that has ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub(crate) enum End {
    /// Outcome of a run that finished with a model.
    Finished {
        accuracy: Option<f64>,
        mae: Option<f64>,
        loss: f64,
        samples: u64,
        seconds: f64,
        agree: bool,
        nodes: usize,
        missing: Vec<String>,
        digest: String,
        reason: String,
        /// Path of the model: on the node that was asked, or where a client has saved it.
        model: String,
    },
    /// Outcome of a run that ended without a model.
    Failed { reason: String },
}

impl Facts {
    /// Describes a run that trains this job on `train` samples, as it is during training: nothing is waited for, and
    /// there is no end yet.
    pub(crate) fn of_job(run: String, job: &Job, train: u64) -> Self {
        Self {
            run,
            data: job.data.to_string(),
            model: job.model.to_string(),
            optimiser: job.optimiser.to_string(),
            exchange: job.exchange.to_string(),
            epochs: job.epochs,
            train,
            phase: Phase::Training.text(),
            waiting: Vec::new(),
            end: None,
        }
    }

    /// Describes a run from a node's report on it.
    pub(crate) fn of(status: &RunStatus) -> Self {
        Self {
            phase: phase(status),
            waiting: status.waiting.to_vec(),
            end: status.outcome.as_ref().map(|outcome| match outcome {
                Ok(result) => finished(result),
                Err(reason) => End::Failed {
                    reason: reason.to_string(),
                },
            }),
            ..Self::of_job(status.run.to_string(), &status.job, status.train)
        }
    }

    /// Returns the run's data, model, optimiser and strategy as one line for people.
    pub(crate) fn job(&self) -> String {
        [&*self.data, &*self.model, &*self.optimiser, &*self.exchange].join(" · ")
    }

    /// Compares the description of a run with an earlier one, `before`, and returns the events that follow from the
    /// change.
    pub(super) fn since(&self, before: Option<&Self>) -> Vec<TimelineEntry> {
        let mut happened = Vec::new();
        let waited_for = before.map_or(&[] as &[WaitingFor], |before| &before.waiting);
        if self.end.is_none() && !waiting::is_the_same(waited_for, &self.waiting) {
            let reasons = self.waiting.clone();
            happened.push(TimelineEntry::Waiting { reasons });
        }
        if before.is_none_or(|before| before.end.is_none()) {
            happened.extend(self.end.as_ref().map(|end| match end {
                End::Finished { reason, .. } => TimelineEntry::Finished { reason: reason.clone() },
                End::Failed { reason } => TimelineEntry::Failed { reason: reason.clone() },
            }));
        }
        happened
    }

    /// Returns the number of samples that the run will train: training samples times epochs.
    pub(crate) fn total(&self) -> u64 {
        self.train.saturating_mul(self.epochs.into())
    }
}

/// Returns the names of the nodes that the run lost. A node that was restarted under the same name and agreed on the
/// result is not lost.
pub(crate) fn missing(result: &RunResult) -> Vec<String> {
    let lost = result.missing.iter().filter(|name| !result.participants.contains(name));
    lost.cloned().collect()
}

fn phase(status: &RunStatus) -> &'static str {
    match (&status.outcome, status.phase) {
        (Some(Ok(_)), _) => "finished",
        (Some(Err(_)), _) => "failed",
        // This node has ended, but others may still be working.
        (None, Phase::Ended) => Phase::Finishing.text(),
        (None, phase) => phase.text(),
    }
}

fn finished(result: &RunResult) -> End {
    End::Finished {
        accuracy: result.scores.accuracy,
        mae: result.scores.mae,
        loss: result.scores.loss,
        samples: result.samples,
        seconds: result.seconds,
        agree: result.agree,
        nodes: result.participants.len(),
        missing: missing(result),
        digest: result.digest.to_string(),
        reason: result.stop.map_or("trained", StopReason::name).into(),
        model: result.model.display().to_string(),
    }
}
