//! What is said on the control plane: between nodes, and between a client and a node. Small messages only.
//!
//! Nodes tell each other their state, not what changed in it: a [`Beat`] holds everything that a peer has to know, so
//! a lost one is made good by the next.

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

/// Who a node is. It never changes but for its workers: a node that starts again is another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its name in messages.
    pub id: NodeId,
    /// Its name for people: what it was given, or the machine's and a part of the id. No two living members have the same.
    pub name: String,
    /// Where others reach it.
    pub address: SocketAddr,
    /// Its release.
    pub version: Name,
    /// What its workers compute on.
    pub device: Name,
    /// How many workers are attached.
    pub workers: usize,
    /// When it started, in milliseconds since 1970.
    pub since: u64,
}

/// What one node tells another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ControlMessage {
    /// A sign of life, with the sender's state.
    Beat(Box<Beat>),
    /// The answer to a beat, with its number.
    Echo {
        /// Who answers.
        from: NodeId,
        /// The number of the beat.
        number: u64,
    },
    /// Get ready for a run, and say whether you can.
    Prepare {
        /// The run.
        run: RunId,
        /// Who wants to know.
        coordinator: NodeId,
        /// What is to be trained.
        #[serde(with = "crate::job::as_text")]
        job: Box<Job>,
    },
    /// Which checkpoint of an earlier run does a node have?
    Find {
        /// The run that is going to be.
        run: RunId,
        /// Who wants to know.
        coordinator: NodeId,
        /// The earlier run.
        resumes: RunId,
    },
    /// The furthest checkpoint that a node has.
    FoundCheckpoint {
        /// The run that is going to be.
        run: RunId,
        /// Which node.
        from: NodeId,
        /// What it has.
        found: Option<Box<FoundCheckpoint>>,
    },
    /// Whether a node can take part.
    Answer {
        /// In which run.
        run: RunId,
        /// Which node.
        from: NodeId,
        /// What it can offer, or why it takes no part.
        answer: Result<Offer, Excluded>,
    },
    /// The run will not begin. Only the node that was asked to start it can say so.
    Abort {
        /// Which.
        run: RunId,
        /// Why.
        reason: RunFailure,
    },
    /// A client has given an order to the sender, which is for all nodes of the run.
    Order {
        /// The run.
        run: RunId,
        /// The order.
        order: RunOrder,
    },
    /// What the sender did in the last second.
    Stats(Box<StatsRecord>),
    /// The sender stops now.
    Leaving(NodeId),
    /// The receiver cannot be a member.
    Unwelcome(Unwelcome),
}

/// A node's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// Whose.
    pub from: NodeInfo,
    /// Counts up.
    pub number: u64,
    /// Everybody that the sender knows, so that all learn of all.
    pub members: Vec<NodeInfo>,
    /// The run that it is in, or was in last, and for a while the one before: who was slower must hear how that ended.
    pub runs: Vec<RunBeat>,
}

/// A checkpoint that a node has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FoundCheckpoint {
    /// Which.
    pub resumed: Resumed,
    /// The stage of the network that it is of, where that is spread over nodes; 0 where it is not.
    pub stage: u8,
    /// What was trained.
    #[serde(with = "crate::job::as_text")]
    pub job: Box<Job>,
}

/// What a node that is ready has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Its data.
    pub data: DataInfo,
    /// The digest of its initial weights.
    pub digest: Digest,
    /// How many workers it brings.
    pub workers: usize,
    /// The fewest groups of layers at which it can hold any of them, where the network is spread over nodes; 1 where it is not.
    pub groups: u8,
    /// How fast a worker of it is, about: million products a second. 0 where nobody has to know.
    pub speed: u64,
    /// The bytes of its memory, where it knows.
    pub memory_bytes: Option<u64>,
    /// The bytes of its GPU's memory, if its workers compute on one.
    pub gpu_bytes: Option<u64>,
}

/// What a client asks of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Who is there?
    Nodes,
    /// Start a run.
    StartTraining {
        /// What is to be trained.
        #[serde(with = "crate::job::as_text")]
        job: Box<Job>,
        /// Begin without those that cannot take part.
        allow_partial: bool,
    },
    /// Go on with an earlier run, from the furthest checkpoint that any node has of it.
    Resume {
        /// The earlier run.
        run: RunId,
        /// What is to be another way than in its job.
        changes: Box<JobDraft>,
        /// Begin without those that cannot take part.
        allow_partial: bool,
    },
    /// Give the run an order.
    Order(RunOrder),
    /// Which run is there, and how far is it?
    Status,
    /// What does your clock say, and what is this data where you are? Answered when it is read, or after a moment.
    InspectData(Option<DataSpec>),
    /// What happened since? Answered when there is news, or after a moment.
    Stats {
        /// The number of the last record that the reader has.
        after: u64,
    },
}

/// An order to the run that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunOrder {
    /// Let every node write a checkpoint.
    Checkpoint,
    /// End the run early, and keep what it has learned.
    Stop,
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Who is there.
    Nodes(Vec<NodeReport>),
    /// The run has begun.
    Started(RunId),
    /// The nodes of the run carry the order out.
    Ordered(RunId),
    /// The run had not begun, and will not.
    CalledOff(RunId),
    /// The newest run, if there was one.
    Status(Option<Box<RunStatus>>),
    /// Records of all nodes, oldest first.
    Stats {
        /// The number of the last one.
        last: u64,
        /// The records.
        records: Vec<StatsRecord>,
    },
    /// How it looks there.
    DataInspected(DataInspection),
    /// It cannot be done.
    Refused(Refusals),
    /// The run that was to begin has failed before that.
    Failed(RunFailure),
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(vec![refusal].into())
    }
}

/// How it looks where a node is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataInspection {
    /// Its clock, in seconds since 1970.
    pub clock: f64,
    /// The data that was asked for, or one sentence; none while it is being read, and where none was asked for.
    pub data: Option<Result<DataInfo, String>>,
}

/// A run as one node sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// The run.
    pub run: RunId,
    /// How far it is.
    pub phase: Phase,
    /// What is trained.
    #[serde(with = "crate::job::as_text")]
    pub job: Box<Job>,
    /// Samples to learn from.
    pub train: u64,
    /// Workers that began it.
    pub workers: usize,
    /// The job's settings that were left open and decided for this run, by name.
    pub chosen: BoundedVec<Name, CHOSEN_MAX>,
    /// The run that diverged and that this one trains once more.
    pub succeeds: Option<RunId>,
    /// The run that trains this one once more, since it has diverged.
    pub successor: Option<RunId>,
    /// How it ended.
    pub outcome: Option<Result<Box<RunResult>, RunFailure>>,
    /// What it waits for.
    pub waiting: Waiting,
}

/// The word for a node that is not heard, whatever it did before.
pub const SILENT: &str = "silent";

/// What a run has come to, over all its nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The names of those that took part to the end.
    pub participants: Vec<String>,
    /// The names of those that were waited for in vain.
    pub missing: Vec<String>,
    /// Who could not take part and was left out.
    pub left_out: AllLeftOut,
    /// Whether all replicas are equal to the bit, workers' weights included.
    pub agree: bool,
    /// The digest of the model.
    pub digest: Digest,
    /// How good it is.
    pub scores: Scores,
    /// How good it would be to always guess the most frequent class; none where there are no classes.
    pub base_rate: Option<BaseRate>,
    /// What all workers did.
    pub stats: WorkerStats,
    /// The samples in all batches, those of nodes that are gone included.
    pub samples: u64,
    /// Those of them that were trained by the run that this one goes on from.
    pub samples_before: u64,
    /// How many of them were trained more than once.
    pub repeated: u64,
    /// Weights of the model.
    pub weights: u64,
    /// First step to last batch applied.
    pub seconds: f64,
    /// Bytes that all nodes sent on the data plane.
    pub bytes_sent: u64,
    /// What each node took of its machine.
    pub usage: Vec<NodeUsage>,
    /// How good the model was on the way.
    pub course: Course,
    /// Why it ended early.
    pub stop: Option<StopReason>,
    /// Where the node that answers has saved it.
    pub model: std::path::PathBuf,
}
