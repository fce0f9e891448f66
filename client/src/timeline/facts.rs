//! What a run is, and how it ended.

use protocol::job::Job;
use protocol::reasons::waiting::{self, WaitingFor};
use protocol::wire::control::{Phase, RunResult, RunStatus};
use protocol::wire::run_beat::StopReason;
use serde::Serialize;

use super::entries::TimelineEntry;

/// A run as its nodes describe it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Facts {
    pub(crate) run: String,
    pub(crate) data: String,
    pub(crate) model: String,
    pub(crate) optimiser: String,
    pub(crate) exchange: String,
    pub(crate) epochs: u32,
    /// Samples to learn from.
    pub(crate) train: u64,
    /// What it does, in a word.
    pub(crate) phase: &'static str,
    /// What it waits for.
    pub(crate) waiting: Vec<WaitingFor>,
    pub(crate) end: Option<End>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub(crate) enum End {
    /// With a model.
    Finished {
        accuracy: f64,
        mae: Option<f64>,
        loss: f64,
        samples: u64,
        seconds: f64,
        agree: bool,
        nodes: usize,
        missing: Vec<String>,
        digest: String,
        reason: String,
        /// Where it lies: on the node that was asked, or where a client has put it.
        model: String,
    },
    /// Without one.
    Failed { reason: String },
}

impl Facts {
    /// A run of a job on so many samples, which trains.
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

    /// What a node says.
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

    /// What is trained, and how, for people.
    pub(crate) fn job(&self) -> String {
        [&*self.data, &*self.model, &*self.optimiser, &*self.exchange].join(" · ")
    }

    /// What has happened since these were known, if any were.
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

    /// Samples that the run will train.
    pub(crate) fn total(&self) -> u64 {
        self.train.saturating_mul(self.epochs.into())
    }
}

/// The nodes that were lost. One that was started again and agreed under the same name is none of them.
pub(crate) fn missing(result: &RunResult) -> Vec<String> {
    let lost = result.missing.iter().filter(|name| !result.participants.contains(name));
    lost.cloned().collect()
}

fn phase(status: &RunStatus) -> &'static str {
    match (&status.outcome, status.phase) {
        (Some(Ok(_)), _) => "finished",
        (Some(Err(_)), _) => "failed",
        // Others may still have something to do.
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
