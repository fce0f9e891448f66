//! Records for people and scripts: what a node does each second, and how a run ended. Their JSON is a contract.

pub mod base_rate;
mod figure;
mod figures;
pub mod measured;
mod worker_stats;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use figure::{Applies, Figure, FigureColumn, Unit};
pub use figures::{ExchangeFigures, FIGURES, RUN_FIGURES, RunFigures, StatsRecord, Work};
pub(crate) use worker_stats::Reading;
pub use worker_stats::WorkerStats;

use crate::bounded::Sentence;
use crate::stats::measured::{Evaluation, NodeUsage};

/// A ratio, zero of nothing.
#[must_use]
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A record with the name of what it is, as a line for scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventLine<'a, R> {
    /// What happened.
    pub event: &'static str,
    /// What is to be said of it.
    #[serde(flatten)]
    pub record: &'a R,
}

/// One node as a member of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node.
    pub node: String,
    /// Where it is reached.
    pub address: String,
    /// What it does, in a word, or that it is silent.
    pub state: String,
    /// What it computes on.
    pub device: String,
    /// How many workers it has.
    pub workers: usize,
    /// When it started, in seconds since 1970.
    pub since: f64,
    /// The newest round trip to it; none to the node that answers.
    pub rtt_ms: Option<f64>,
}

/// What a node exchanged with one peer since the start of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerRecord {
    /// The peer.
    pub node: String,
    /// Bytes received from it.
    pub bytes_in: u64,
    /// Bytes sent to it.
    pub bytes_out: u64,
    /// Batches that this node has and the peer has not acknowledged.
    pub lag: u64,
    /// Batches waiting to be written to it.
    pub queue: u64,
}

/// How grave it is what a node says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It is as it should be.
    News,
    /// Somebody may have to look.
    Warning,
    /// Something is wrong.
    Error,
}

/// A sentence that a node has said to whoever started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogNotice {
    /// How grave it is.
    #[serde(rename = "gravity")]
    pub severity: Severity,
    /// The sentence.
    pub text: Sentence,
}

impl StatsRecord {
    /// Sentences about what is waited for in one record; who wants to know all asks for the run's status.
    pub const WAITING_MAX: usize = 8;
    /// Log notices in one record.
    pub const SAID_MAX: usize = 8;

    /// All evaluations that the record tells of, oldest first; the newest may have been told of before.
    pub fn told_evaluations(&self) -> impl Iterator<Item = Evaluation> + '_ {
        self.evaluations.iter().copied().chain(self.evaluation)
    }
}

/// The time between two records of a run of this age, where they usually come this often. They come more often at the
/// beginning, each after as long as the run took to the one before, so that a run of less than a second has a course, too.
#[must_use]
pub fn record_interval(age: Duration, usual: Duration) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(50);
    (age / 2).clamp(SHORTEST.min(usual), usual)
}

/// The last line of a run that finished.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finished {
    /// Always `finished`.
    pub event: &'static str,
    /// The run.
    pub run: String,
    /// When its end was heard of, as RFC 3339 has it.
    pub ended: String,
    /// Evaluation accuracy of the saved weights.
    pub accuracy: f64,
    /// The evaluation accuracy of always guessing the most frequent class; none where there are no classes.
    pub base_rate: Option<f64>,
    /// The share of the numbers' variance that is explained, where numbers are predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r2: Option<f64>,
    /// How far they are off, in their own units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mae: Option<f64>,
    /// Evaluation loss of the saved weights.
    pub loss: f64,
    /// Epochs trained, the last one perhaps in part.
    pub epochs: f64,
    /// Samples trained, by all nodes.
    pub samples: u64,
    /// How many of them were trained more than once.
    pub repeated_samples: u64,
    /// The norm of what was lost with workers that died.
    pub residual_lost: f64,
    /// First step to last batch applied.
    pub seconds: f64,
    /// Samples by seconds.
    pub samples_per_second: f64,
    /// How many nodes took part.
    pub nodes: usize,
    /// Which.
    pub participants: Vec<String>,
    /// Which were waited for in vain.
    pub missing: Vec<String>,
    /// Who could not take part and was left out: a sentence for each.
    pub left_out: Vec<String>,
    /// Whether all participants ended with the same weights to the bit.
    pub replicas_agree: bool,
    /// The digest of the saved weights.
    pub digest: String,
    /// Bytes sent on the data plane, by all nodes.
    pub bytes_sent: u64,
    /// What every step's gradient as `f32` to every peer would have cost.
    pub bytes_dense: u64,
    /// Their ratio.
    pub compression: f64,
    /// Figures of the whole run, as fields of the line itself.
    #[serde(flatten)]
    pub figures: RunFigures,
    /// What each node took of its machine.
    pub usage: Vec<NodeUsage>,
    /// How good the model was on the way, and at last the saved weights.
    pub evaluations: Vec<Evaluation>,
    /// The settings that the job left open, as they were decided for this run.
    pub chosen: BTreeMap<String, toml::Value>,
    /// The run that diverged and that this one has trained once more, at half its rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeds: Option<String>,
    /// Why it ended: `trained` if all its samples were, or what stopped it.
    pub reason: &'static str,
    /// After so many evaluations in a row without a lower evaluation loss the run was to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u32>,
    /// The evaluation whose weights came back as the best, where the best were to be kept; none if they are the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<Evaluation>,
    /// What is doubtful about the model, a sentence each.
    pub warnings: Vec<String>,
    /// The saved model, as an absolute path.
    pub model: String,
}

/// The last line of a run that did not finish.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failed {
    /// Always `failed`.
    pub event: &'static str,
    /// One sentence: what was wrong and what to do.
    pub error: String,
}

impl Failed {
    /// A failure for this reason.
    #[must_use]
    pub fn because(error: impl Into<String>) -> Self {
        Self {
            event: "failed",
            error: error.into(),
        }
    }
}
