//! What is said on the control plane: between nodes, and between a client and a node. Small messages only.
//!
//! Nodes tell each other their state, not what changed in it: a [`Beat`] holds everything that a peer has to know, so
//! a lost one is made good by the next.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::attach::{DataInfo, Scores, WorkerStats};
use crate::digest::Digest;
use crate::ids::{NodeId, RunId};
use crate::job::Job;
use crate::run_beat::{RunBeat, StopReason};
use crate::stats::{NodeReport, StatsRecord};

/// Who a node is. It never changes but for its workers: a node that starts again is another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its name in messages.
    pub id: NodeId,
    /// Its name for people: the machine's, and a part of the id.
    pub name: String,
    /// Where others reach it.
    pub address: SocketAddr,
    /// Its release.
    pub version: String,
    /// What its workers compute on.
    pub device: String,
    /// How many workers are attached.
    pub workers: usize,
    /// When it started, in milliseconds since 1970.
    pub since: u64,
}

/// What one node tells another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Word {
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
    Found {
        /// The run that is going to be.
        run: RunId,
        /// Which node.
        from: NodeId,
        /// What it has.
        found: Option<Box<Found>>,
    },
    /// Write a checkpoint.
    Checkpoint(RunId),
    /// Whether a node can take part.
    Answer {
        /// In which run.
        run: RunId,
        /// Which node.
        from: NodeId,
        /// What it can offer, or one sentence.
        answer: Result<Offer, String>,
    },
    /// The run will not begin. Only the node that was asked to start it can say so.
    Abort {
        /// Which.
        run: RunId,
        /// One sentence.
        reason: String,
    },
    /// A client wants a run to end, and has said so to the sender.
    Stop(RunId),
    /// What the sender did in the last second.
    Stats(Box<StatsRecord>),
    /// The sender stops now.
    Leaving(NodeId),
    /// The receiver cannot be a member; one sentence.
    Unwelcome(String),
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

/// A checkpoint that a run goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The run that it is of.
    pub run: RunId,
    /// The digest of its weights.
    pub digest: Digest,
    /// The samples in its batches.
    pub samples: u64,
    /// The worker slots that samples were shared out to.
    pub slots: usize,
}

/// A checkpoint that a node has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Which.
    pub resumed: Resumed,
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
}

/// A run with its participants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// What is trained.
    #[serde(with = "crate::job::as_text")]
    pub job: Box<Job>,
    /// On what.
    pub data: DataInfo,
    /// By whom: those that began it, in the order of their slots, and then those that came later, its guests.
    pub participants: Vec<Participant>,
    /// What it goes on from; at the beginning if nothing.
    pub resumed: Option<Resumed>,
}

/// A node that takes part in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participant {
    /// Which.
    pub node: NodeId,
    /// Its name for people.
    pub name: String,
    /// Where it is reached.
    pub address: SocketAddr,
    /// How many worker slots it has.
    pub workers: usize,
    /// It came when the run had begun. Samples were shared out without it: it takes from others what they have not
    /// begun.
    pub guest: bool,
}

/// Slots that guests' are drawn from.
const GUEST_SLOTS: u64 = 1 << 16;

impl Begin {
    /// The number of worker slots that samples were shared out to.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.resumed.map_or_else(|| self.workers(), |resumed| resumed.slots)
    }

    /// The workers of those that began it.
    #[must_use]
    pub fn workers(&self) -> usize {
        let first = self.participants.iter().filter(|participant| !participant.guest);
        first.map(|participant| participant.workers).sum()
    }

    /// The slots of a node's workers. Those of guests come after all others, and far apart: a slot decides what its worker
    /// claims first, and guests live on claims. Should two be the same, they claim the same now and then.
    #[must_use]
    pub fn slots_of(&self, node: NodeId) -> std::ops::Range<usize> {
        let Some(own) = self.participant(node) else {
            return 0..0;
        };
        let first = if own.guest {
            self.slots().max(self.workers()) + (own.node.0 % GUEST_SLOTS) as usize
        } else {
            let before = self.participants.iter().take_while(|one| one.node != node);
            before.map(|participant| participant.workers).sum()
        };
        first..first + own.workers
    }

    /// Adds a guest, unless it takes part already; whether that is news. All nodes end up with the same list.
    pub fn admit(&mut self, guest: Participant) -> bool {
        if self.participant(guest.node).is_some() {
            return false;
        }
        let guest = Participant { guest: true, ..guest };
        let after = |one: &Participant| !one.guest || one.node < guest.node;
        let place = self.participants.partition_point(after);
        self.participants.insert(place, guest);
        true
    }

    /// The participant with this name.
    #[must_use]
    pub fn participant(&self, node: NodeId) -> Option<&Participant> {
        self.participants.iter().find(|participant| participant.node == node)
    }

    /// Whether a node came when the run was under way.
    #[must_use]
    pub fn is_guest(&self, node: NodeId) -> bool {
        self.participant(node).is_some_and(|participant| participant.guest)
    }
}

/// What a client asks of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Who is there?
    Nodes,
    /// Start a run.
    Start {
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
        /// Begin without those that cannot take part.
        allow_partial: bool,
    },
    /// Let every node write a checkpoint.
    Checkpoint,
    /// End the run early, and keep what it has learned.
    Stop,
    /// Which run is there, and how far is it?
    Status,
    /// What happened since? Answered when there is news, or after a moment.
    Stats {
        /// The number of the last record that the reader has.
        after: u64,
    },
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Who is there.
    Nodes(Vec<NodeReport>),
    /// The run has begun.
    Started(RunId),
    /// Every node writes a checkpoint of the run.
    Checkpointing(RunId),
    /// The run is going to end.
    Stopping(RunId),
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
    /// It cannot be done; one sentence for each reason.
    Refused(Vec<String>),
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
    /// How it ended.
    pub outcome: Option<Result<Box<RunResult>, String>>,
    /// What it waits for, a sentence each.
    pub waiting: Vec<String>,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Data is opened.
    Preparing,
    /// Workers train.
    Training,
    /// No further steps; the last batches are under way.
    Settling,
    /// The model is measured and saved.
    Finishing,
    /// It is over.
    Ended,
}

impl Phase {
    /// The word for people and records.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Training => "training",
            Self::Settling => "settling",
            Self::Finishing => "finishing",
            Self::Ended => "idle",
        }
    }
}

/// What a run has come to, over all its nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The names of those that took part to the end.
    pub participants: Vec<String>,
    /// The names of those that were waited for in vain.
    pub missing: Vec<String>,
    /// Whether all replicas are equal to the bit, workers' weights included.
    pub agree: bool,
    /// The digest of the model.
    pub digest: Digest,
    /// How good it is.
    pub scores: Scores,
    /// What all workers did.
    pub stats: WorkerStats,
    /// The samples in all batches, those of nodes that are gone included.
    pub samples: u64,
    /// How many of them were trained more than once.
    pub repeated: u64,
    /// Weights of the model.
    pub weights: u64,
    /// First step to last batch applied.
    pub seconds: f64,
    /// Bytes that all nodes sent on the data plane.
    pub bytes_sent: u64,
    /// Why it ended early.
    pub stop: Option<StopReason>,
    /// Where the node that answers has saved it.
    pub model: std::path::PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobDraft;
    use crate::model::Shape;

    #[test]
    fn slots_follow_the_participants() {
        let participant = |id, workers| Participant {
            node: NodeId(id),
            name: format!("n{id}"),
            address: "127.0.0.1:1".parse().unwrap(),
            workers,
            guest: false,
        };
        let mut begin = Begin {
            job: Box::new(JobDraft::default().resolve().unwrap()),
            data: DataInfo {
                hash: [0; 32],
                input: Shape::Flat(3),
                classes: 2,
                train: 10,
                test: 2,
            },
            participants: vec![participant(9, 2), participant(3, 1), participant(5, 3)],
            resumed: None,
        };
        assert_eq!(begin.slots(), 6);
        assert_eq!(begin.slots_of(NodeId(9)), 0..2);
        assert_eq!(begin.slots_of(NodeId(3)), 2..3);
        assert_eq!(begin.slots_of(NodeId(5)), 3..6);
        assert!(begin.slots_of(NodeId(4)).is_empty());
        assert!(begin.admit(participant(7, 2)) && begin.admit(participant(4, 1)));
        assert!(!begin.admit(participant(7, 1)) && !begin.admit(participant(9, 1)));
        let order: Vec<u64> = begin.participants.iter().map(|one| one.node.0).collect();
        assert_eq!((order, begin.slots()), (vec![9, 3, 5, 4, 7], 6));
        assert_eq!((begin.slots_of(NodeId(7)), begin.slots_of(NodeId(4))), (13..15, 10..11));
        assert_eq!(begin.slots_of(NodeId(5)), 3..6);
        let bytes = postcard::to_stdvec(&begin).unwrap();
        assert_eq!(postcard::from_bytes::<Begin>(&bytes).unwrap(), begin);
    }
}
