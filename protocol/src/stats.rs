//! Records for people and scripts: what a node does each second, and how a run ended. Their JSON is a contract.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bounded::{BoundedVec, Sentence};
use crate::measured::{Evaluation, NodeUsage, ProcessUsage, number_or_null};
use crate::waiting::WaitingFor;

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

/// One node in one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatsRecord {
    /// When it came to the node that tells of it, by that node's clock, in seconds since 1970.
    pub time: f64,
    /// The node.
    pub node: String,
    /// The run.
    pub run: String,
    /// What the node is doing.
    pub state: String,
    /// Samples trained per second, over the last second.
    pub samples_per_second: f64,
    /// Samples trained since the start.
    pub samples: u64,
    /// Samples of the whole run that this node knows to be trained, by whomever; those trained twice count twice.
    pub ledger_samples: u64,
    /// Seconds since the first step of the run that this node knows of.
    pub seconds: f64,
    /// The mean training loss of the last second; none before the first step.
    pub loss: Option<f64>,
    /// The newest evaluation accuracy; where numbers are predicted R².
    pub accuracy: Option<f64>,
    /// How far numbers are off, in their own units; none where there are classes.
    pub mae: Option<f64>,
    /// The τ of the newest batch.
    pub tau: f64,
    /// Changes per weight and batch in the last second.
    pub density: f64,
    /// Bytes received on the data plane since the start.
    pub bytes_in: u64,
    /// Bytes sent on the data plane since the start.
    pub bytes_out: u64,
    /// What every step's gradient as `f32` to every peer would have cost.
    pub bytes_dense: u64,
    /// How far weights move on between a gradient and its arrival from another worker, in rounds of
    /// one batch from every worker.
    pub staleness: f64,
    /// Batches known of but not applied.
    pub frontier_lag: u64,
    /// The digest of the ledger.
    pub digest: String,
    /// Batches waiting to be sent.
    pub queue: u64,
    /// The share of the last second in which emission was paused.
    pub paused_share: f64,
    /// The share of the worker's time that the exchange took.
    pub exchange_share: f64,
    /// The newest round that anybody has come to, where the strategy has rounds.
    pub round: u64,
    /// How often somebody's round was waited for in vain.
    pub late: u64,
    /// Rounds that came here added up on their way.
    pub bundled: u64,
    /// Rounds that were to, and whose batches came one by one instead.
    pub given_up: u64,
    /// Seconds in which this node took in, added up and applied what came.
    pub adding_seconds: f64,
    /// The share of the worker's time in which it waited for others' rounds.
    pub waited_share: f64,
    /// The share of the worker's time that making updates orthogonal took.
    pub direction_share: f64,
    /// Bytes that came over the node's sockets since the run began there, for both planes, with encryption and handshakes.
    pub wire_in: u64,
    /// Bytes that left.
    pub wire_out: u64,
    /// Cores kept busy.
    pub cpu: f64,
    /// Memory in use.
    pub memory_bytes: u64,
    /// GPUs kept busy: the share of the last second in which they were at work, added up over workers.
    pub gpu: f64,
    /// Memory of GPUs in use.
    pub gpu_memory_bytes: u64,
    /// The norm of what has not been emitted.
    #[serde(deserialize_with = "number_or_null")]
    pub residual_norm: f64,
    /// The norm of what was lost with workers that died.
    #[serde(deserialize_with = "number_or_null")]
    pub residual_lost: f64,
    /// Samples of the whole run that were trained more than once: after a partition, or where a node died.
    pub repeated_samples: u64,
    /// The newest evaluation, from the node that measured.
    pub evaluation: Option<Evaluation>,
    /// The evaluations that the node has made since its last record, oldest first.
    pub evaluations: Vec<Evaluation>,
    /// What each of the node's processes has used since the run began there.
    pub processes: Vec<ProcessUsage>,
    /// What the node waits for, to begin or to end the run: each is what follows "waiting for".
    pub waiting: BoundedVec<WaitingFor, { StatsRecord::WAITING_MAX }>,
    /// What the node has said since its last record.
    pub said: BoundedVec<LogNotice, { StatsRecord::SAID_MAX }>,
    /// The exchange with each peer.
    pub peers: Vec<PeerRecord>,
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
    /// Changes per weight and batch.
    pub density: f64,
    /// The share of workers' time that the exchange took.
    pub exchange_share: f64,
    /// The share of workers' time in which they waited for others' rounds.
    pub waited_share: f64,
    /// The share of workers' time that making updates orthogonal took.
    pub direction_share: f64,
    /// Bytes that left all nodes' sockets, for both planes, with encryption and handshakes.
    pub wire_sent: u64,
    /// Processor time of all processes.
    pub cpu_seconds: f64,
    /// The most memory that any process has had.
    pub memory_peak_bytes: u64,
    /// Bytes that all processes read from disks.
    pub disk_read_bytes: u64,
    /// Bytes that all processes wrote to disks.
    pub disk_write_bytes: u64,
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
