//! Messages of the control plane: between nodes, and between a client and a node. Small messages only.
//!
//! Nodes send each other their whole state, not changes: a [`Beat`] holds everything that another node has to know, so
//! the next beat makes up for a lost one.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::bounded::{BoundedVec, Name};
use crate::ids::{NodeId, RunId};
use crate::job::data::{DataInfo, DataSpec};
use crate::job::{Job, JobDraft};
use crate::reasons::waiting::Waiting;
use crate::reasons::{AllLeftOut, Excluded, Refusal, Refusals, RunFailure, Unwelcome};
use crate::stats::base_rate::BaseRate;
use crate::stats::measured::{Course, NodeUsage, Scores};
use crate::stats::{NodeReport, StatsRecord, WorkerStats};
use crate::weights::digest::Digest;
pub use crate::wire::phase::Phase;
use crate::wire::run_beat::{RunBeat, StopReason};
use crate::wire::run_plan::{CHOSEN_MAX, Resumed};

/// Description of a node. Only the number of workers changes: a node that is restarted is another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    pub id: NodeId,
    /// The node's name for people: chosen by the user, or the host's name and a part of the id. Unique among living
    /// members.
    pub name: String,
    /// Address at which other nodes reach the node.
    pub address: SocketAddr,
    /// The node's release of Tau.
    pub version: Name,
    /// Device that the node's workers compute on.
    pub device: Name,
    /// Number of worker processes that are attached to the node.
    pub workers: usize,
    /// Time at which the node started, in milliseconds since 1970.
    pub since: u64,
}

/// A message from one node to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ControlMessage {
    /// A beat: a sign of life with the sender's whole state, sent twice a second.
    Beat(Box<Beat>),
    /// The answer to a beat (a node's state message), from which round-trip times follow.
    Echo {
        /// Id of the node that answers.
        from: NodeId,
        /// The number of the beat (state message) that is answered.
        number: u64,
    },
    /// Asks a node to prepare for a run. Answered with [`ControlMessage::Answer`].
    Prepare {
        run: RunId,
        /// The node that coordinates the start of the run.
        coordinator: NodeId,
        /// The job to be trained.
        #[serde(with = "crate::job::as_text")]
        job: Box<Job>,
    },
    /// Asks a node for its checkpoint of an earlier run. Answered with [`ControlMessage::FoundCheckpoint`].
    Find {
        /// The run that is to begin.
        run: RunId,
        /// The node that coordinates the start of the run.
        coordinator: NodeId,
        /// Id of the earlier run.
        resumes: RunId,
    },
    /// A node's furthest checkpoint of the earlier run, in answer to [`ControlMessage::Find`].
    FoundCheckpoint {
        /// The run that is to begin, in place of the earlier one.
        run: RunId,
        /// Id of the node that answers.
        from: NodeId,
        /// The checkpoint that the node found; none if it has none.
        found: Option<Box<FoundCheckpoint>>,
    },
    /// A node's answer to [`ControlMessage::Prepare`].
    Answer {
        run: RunId,
        /// Id of the node that answers.
        from: NodeId,
        /// The node's offer, or the reason why it takes no part.
        answer: Result<Offer, Excluded>,
    },
    /// Announces that a run will not begin. Only the node that was asked to start the run sends this message.
    Abort { run: RunId, reason: RunFailure },
    /// Passes on an order that a client gave to the sender, and that is for all nodes of the run.
    Order { run: RunId, order: RunOrder },
    /// The sender's record of its statistics for the last second.
    Stats(Box<StatsRecord>),
    /// Announces that the sender of this message, which has this id, stops now.
    Leaving(NodeId),
    /// Tells the receiver that it cannot be a member of the cluster.
    Unwelcome(Unwelcome),
}

/// A node's whole state, which it sends to every other node twice a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// Description of the node that sends the beat.
    pub from: NodeInfo,
    /// Number of the state, which its sender counts up; of two states the one with the higher number is the newer.
    pub number: u64,
    /// All members of the cluster that the sender knows, so that every node learns of every other.
    pub members: Vec<NodeInfo>,
    /// The sender's current or last run, and for a while the run before that, so that slower nodes hear how it ended.
    pub runs: Vec<RunBeat>,
}

/// A node's checkpoint of an earlier run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FoundCheckpoint {
    /// Identity of the checkpoint: its run, the digest of its weights, and the batches that these contain.
    pub resumed: Resumed,
    /// The pipeline stage that the checkpoint holds; 0 if nodes hold the whole network.
    pub stage: u8,
    /// The job of the earlier run.
    #[serde(with = "crate::job::as_text")]
    pub job: Box<Job>,
}

/// Offer of a node that has prepared for a run: its data, workers, speed and memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Description of the node's data.
    pub data: DataInfo,
    /// Digest (checksum) of the node's initial weights.
    pub digest: Digest,
    /// Number of the model's weights.
    pub weights: u64,
    /// Number of workers that the node has for the run.
    pub workers: usize,
    /// The smallest number of groups of layers at which the node has enough memory for any one group, if the network is
    /// spread over nodes; else 1.
    pub groups: u8,
    /// Approximate speed of one of the node's workers in million multiplications per second; 0 if it is not needed.
    pub speed: u64,
    /// Bytes of the node's memory, if the node knows.
    pub memory_bytes: Option<u64>,
    /// Bytes of the node's GPU memory, if its workers compute on a GPU.
    pub gpu_bytes: Option<u64>,
}

impl Offer {
    /// Returns true if the node can take part in a run of this job that begins with `weights` weights of the digest
    /// `first`: it has the same first weights or, if nodes draw them by themselves, as many.
    #[must_use]
    pub fn has_weights_for(&self, job: &Job, first: Digest, weights: u64) -> bool {
        self.weights == weights && (job.nodes_draw_weights() || self.digest == first)
    }
}

/// A request from a client to a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Asks for the members of the cluster.
    Nodes,
    /// Asks the node to start a run of a job.
    StartTraining {
        /// The job to be trained.
        #[serde(with = "crate::job::as_text")]
        job: Box<Job>,
        /// True if the run may begin without nodes that cannot take part.
        allow_partial: bool,
    },
    /// Asks the node to resume an earlier run from the furthest checkpoint that any node has.
    Resume {
        /// Id of the earlier run.
        run: RunId,
        /// Settings that replace those of the earlier run's job.
        changes: Box<JobDraft>,
        /// True if the run may begin without nodes that cannot take part.
        allow_partial: bool,
    },
    /// Gives an order to the current run.
    Order(RunOrder),
    /// Asks for the state of the newest run.
    Status,
    /// Asks for the node's clock and, if data is named, for a description of that data on the node. Answered when the
    /// data has been read, or after a short time.
    InspectData(Option<DataSpec>),
    /// Asks for new records of nodes' statistics. Answered when there are some, or after a short time.
    Stats {
        /// The number of the last record that the client has got.
        after: u64,
    },
}

/// An order to the current run, which a client gives to any of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunOrder {
    /// Makes every node of the run write a checkpoint.
    Checkpoint,
    /// Ends the run early, and keeps what was learned.
    Stop,
}

/// A node's reply to a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Reply with the members of the cluster.
    Nodes(Vec<NodeReport>),
    /// Reply that the requested run has begun.
    Started(RunId),
    /// Reply that the nodes of the run carry out the client's order.
    Ordered(RunId),
    /// Reply to an order to stop: the run had not begun, and will not begin.
    CalledOff(RunId),
    /// Reply with the state of the newest run; none if there was no run.
    Status(Option<Box<RunStatus>>),
    /// Reply with records of all nodes' statistics, oldest first.
    Stats {
        /// The number of the last record in the reply. The client's next request asks for the records after it.
        last: u64,
        records: Vec<StatsRecord>,
    },
    /// Reply with the node's clock and the description of its data.
    DataInspected(DataInspection),
    /// Reply that the request is refused, for these reasons.
    Refused(Refusals),
    /// Reply that the run that was to begin has failed before its beginning.
    Failed(RunFailure),
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(vec![refusal].into())
    }
}

/// A node's clock, and a description of data on the node, for a client that checks if a run could begin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataInspection {
    /// The node's clock, in seconds since 1970.
    pub clock: f64,
    /// Description of the data, or one sentence on why it cannot be read. None while the node reads the data, and if no
    /// data was named.
    pub data: Option<Result<DataInfo, String>>,
}

/// State of a run as one node sees it, for clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    pub run: RunId,
    pub phase: Phase,
    /// The job that is trained.
    #[serde(with = "crate::job::as_text")]
    pub job: Box<Job>,
    /// Number of training samples.
    pub train: u64,
    /// Number of workers that began the run.
    pub workers: usize,
    /// Names of the settings that the job left to be decided, and that were decided for this run.
    pub chosen: BoundedVec<Name, CHOSEN_MAX>,
    /// The diverged run whose job this run trains again.
    pub succeeds: Option<RunId>,
    /// The run that trains this run's job again, because this run has diverged.
    pub successor: Option<RunId>,
    /// The run's result or failure; none while the run goes on.
    pub outcome: Option<Result<Box<RunResult>, RunFailure>>,
    /// Things that the run waits for at the moment.
    pub waiting: Waiting,
}

/// State in a [`NodeReport`] of a node that is not heard any more, whatever its state was before.
pub const SILENT: &str = "silent";

/// Result of a run, over all its nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Names of the nodes that took part to the end.
    pub participants: Vec<String>,
    /// Names of the nodes that took part in the run, but did not end it with the others.
    pub missing: Vec<String>,
    /// Nodes that could not take part and were left out.
    pub left_out: AllLeftOut,
    /// True if all replicas of the weights are equal to the bit, those of workers included.
    pub agree: bool,
    /// Digest (checksum) of the model's weights.
    pub digest: Digest,
    /// Scores of the model on the evaluation samples.
    pub scores: Scores,
    /// Accuracy of always guessing the most frequent class of the test samples, for comparison; none if the model
    /// predicts numbers.
    pub base_rate: Option<BaseRate>,
    /// Statistics of all workers of the run.
    pub stats: WorkerStats,
    /// Number of samples in all batches of the run, those of lost nodes included.
    pub samples: u64,
    /// Number of samples that were trained before the checkpoint from which this run was resumed.
    pub samples_before: u64,
    /// Number of samples that were trained more than once.
    pub repeated: u64,
    /// Number of the model's weights.
    pub weights: u64,
    /// Seconds from the first step to the last batch applied.
    pub seconds: f64,
    /// Bytes of batches, and of messages about them, that all nodes sent to each other.
    pub bytes_sent: u64,
    /// Resources that each node used on its machine.
    pub usage: Vec<NodeUsage>,
    /// The evaluations made during the run.
    pub course: Course,
    /// Cause for which the run ended early; none if all samples were trained.
    pub stop: Option<StopReason>,
    /// Path at which the node that replies has saved the model.
    pub model: std::path::PathBuf,
}
