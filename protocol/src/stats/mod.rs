//! Records for people and scripts: a node's work in each second, and the result of a run. Their JSON is a contract.

pub mod base_rate;
mod figure;
mod figures;
pub mod measured;
pub mod named;
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
use crate::stats::named::NamedNumbers;

/// Returns `part / whole`, or zero if `whole` is zero.
#[must_use]
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A record with the name of an event, printed as one JSON line for scripts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventLine<'a, R> {
    /// Name of the event that this JSON line reports.
    pub event: &'static str,
    /// The event's record, whose fields stand beside the event's name in the JSON line.
    #[serde(flatten)]
    pub record: &'a R,
}

/// One node as a member of the cluster, for people and scripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Name of the node.
    pub node: String,
    /// Address at which other nodes reach the node.
    pub address: String,
    /// Phase of the node's run in one word, or `silent`.
    pub state: String,
    /// Device that the node's workers compute on.
    pub device: String,
    /// Number of attached workers.
    pub workers: usize,
    /// Time at which the node started, in seconds since 1970.
    pub since: f64,
    /// Newest round-trip time to the node in milliseconds; none for the node that reports.
    pub rtt_ms: Option<f64>,
}

/// Data exchanged with one peer since the start of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerRecord {
    /// Name of the peer.
    pub node: String,
    /// Bytes received from the peer.
    pub bytes_in: u64,
    /// Bytes sent to the peer.
    pub bytes_out: u64,
    /// Number of batches that this node has and the peer has not acknowledged.
    pub lag: u64,
    /// Number of batches waiting to be written to the peer.
    pub queue: u64,
}

/// Severity of a message of a node to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Severity of a message about a normal event.
    News,
    /// Severity of a message on which a person may have to act.
    Warning,
    /// Severity of a message that something is wrong.
    Error,
}

/// A log message of a node for people, carried in its records so that every watcher sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogNotice {
    /// Severity of the message.
    #[serde(rename = "gravity")]
    pub severity: Severity,
    /// Text of the log message.
    pub text: Sentence,
}

impl StatsRecord {
    /// Maximum number of things that a node waits for in one record; a run's status has all of them.
    pub const WAITING_MAX: usize = 8;
    /// Maximum number of log notices (sentences for people) in one record.
    pub const SAID_MAX: usize = 8;

    /// Returns all evaluations in the record, oldest first. The newest of them may have been in an earlier record, too.
    pub fn told_evaluations(&self) -> impl Iterator<Item = &Evaluation> {
        self.evaluations.iter().chain(&self.evaluation)
    }
}

/// Returns the interval until the next record of statistics in a run of this age, given the usual interval. Intervals
/// are shorter at the beginning (half of the run's age, at least 50 ms), so that a run of less than a second has
/// several records, too.
#[must_use]
pub fn record_interval(age: Duration, usual: Duration) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(50);
    (age / 2).clamp(SHORTEST.min(usual), usual)
}

/// The last line that a client prints for a run that finished.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finished {
    /// Event that this JSON line reports: always `finished`.
    pub event: &'static str,
    /// Id of the run.
    pub run: String,
    /// Time at which the client heard of the run's end, in RFC 3339 format.
    pub ended: String,
    /// Evaluation accuracy of the saved weights; none for a model without an accuracy.
    pub accuracy: Option<f64>,
    /// Evaluation accuracy of always guessing the most frequent class; none if the model predicts numbers.
    pub base_rate: Option<f64>,
    /// R², the explained share of the numbers' variance; none for classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r2: Option<f64>,
    /// Mean absolute error of predicted numbers in their own unit; none for classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mae: Option<f64>,
    /// Evaluation loss of the saved weights.
    pub loss: f64,
    /// Further numbers that the user's code has measured with the saved weights.
    #[serde(skip_serializing_if = "NamedNumbers::is_empty")]
    pub named: NamedNumbers,
    /// Number of epochs trained; the last one may be partial.
    pub epochs: f64,
    /// Number of samples trained by all nodes.
    pub samples: u64,
    /// Number of samples that were trained more than once.
    pub repeated_samples: u64,
    /// Norm of the changes that workers that died had learned and not sent.
    pub residual_lost: f64,
    /// Seconds from the first step to the last batch applied.
    pub seconds: f64,
    /// Samples trained per second.
    pub samples_per_second: f64,
    /// Number of nodes that took part.
    pub nodes: usize,
    /// Names of the nodes that took part to the end.
    pub participants: Vec<String>,
    /// Names of the nodes that took part in the run, but did not end it with the others.
    pub missing: Vec<String>,
    /// A sentence for each node that could not take part and was left out.
    pub left_out: Vec<String>,
    /// True if all participants ended with the same weights to the bit.
    pub replicas_agree: bool,
    /// Digest (checksum) of the saved weights.
    pub digest: String,
    /// Bytes of batches, and of messages about them, that all nodes sent to each other.
    pub bytes_sent: u64,
    /// Bytes that sending every step's gradient as `f32` to every peer would have taken.
    pub bytes_dense: u64,
    /// Compression ratio: `bytes_dense` divided by `bytes_sent`.
    pub compression: f64,
    /// Figures of the whole run; each is a field of the JSON line itself.
    #[serde(flatten)]
    pub figures: RunFigures,
    /// Resources that each node used on its machine.
    pub usage: Vec<NodeUsage>,
    /// Quality of the model over time; the last entry is that of the saved weights.
    pub evaluations: Vec<Evaluation>,
    /// Settings that the job left out, with the values that the nodes decided for this run.
    pub chosen: BTreeMap<String, toml::Value>,
    /// The diverged run whose job this run trained again, at half its learning rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeds: Option<String>,
    /// Reason of the end: `trained` if all samples were trained, else the cause of an early stop.
    pub reason: &'static str,
    /// Number of consecutive evaluations without a lower loss after which the run was to end; none if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u32>,
    /// The evaluation whose weights were restored as the best, if the job keeps the best; none if the saved weights are
    /// the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<Evaluation>,
    /// Warnings about the model, for example that it is no better than guessing; one sentence each.
    pub warnings: Vec<String>,
    /// Absolute path of the saved model.
    pub model: String,
}

/// The last line that a client prints for a run that did not finish.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failed {
    /// Event that this JSON line reports: always `failed`.
    pub event: &'static str,
    /// Cause of the failure and its remedy, in one sentence for people.
    pub error: String,
}

impl Failed {
    /// Returns the line to print for a run that failed, with this sentence as the cause and remedy.
    #[must_use]
    pub fn because(error: impl Into<String>) -> Self {
        Self {
            event: "failed",
            error: error.into(),
        }
    }
}
