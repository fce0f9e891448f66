//! Things that a run waits for, to begin or to end.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bounded::{BoundedVec, Name, Sentence};

/// Maximum number of things that a run waits for in one list; there is at most one for each member of a cluster.
pub const WAITING_MAX: usize = 1 << 10;

/// Everything that a run waits for at one moment.
pub type Waiting = BoundedVec<WaitingFor, WAITING_MAX>;

/// One thing that a run waits for. Its text reads as the words after "waiting for"; in JSON it is this text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub enum WaitingFor {
    /// The run waits for the first worker to attach to this node.
    OwnWorkers,
    /// The run waits until this node's workers have opened the data.
    OwnData,
    /// The run waits until other nodes have prepared for it.
    OtherNodes,
    /// The run waits until this node has started its exchange of batches.
    OwnExchange,
    /// A pipeline waits for a new worker of this node, whose worker is gone.
    OwnWorkerRestart,
    /// The run waits until this node's worker has returned to the measured weights that the run keeps as its result. It
    /// does this once all other workers have made their last batches.
    OwnMeasuredWeights,
    /// The run waits for the last batches of this node's workers.
    OwnLastBatches,
    /// The run waits until this node's damaged ledger (its exact replica of the weights) is replaced with another
    /// node's.
    OwnLedger,
    /// The run waits for this node's workers to report the digests of their weights.
    OwnDigests,
    /// The run waits until this node has measured the model's quality and saved the model.
    OwnModel,
    /// The run waits for samples that a worker of this node has trained but not sent.
    OwnSamples,
    /// The run waits for any node with workers to join: this node joined without workers, and all nodes that had
    /// workers are gone.
    AnyWorker,
    /// The run waits for another node to finish a task.
    Node {
        /// The name of the node that has a task to finish.
        node: Name,
        /// The task that the other node has to finish.
        task: NodeTask,
    },
    /// The run waits for the first message of the node with this name.
    FirstMessage(Name),
    /// The run waits for a silent node, which is given up if it stays silent.
    Silent {
        /// The name of the silent node.
        node: Name,
        /// The time since the node was last heard.
        silence: Duration,
        /// The silence after which the node is given up.
        limit: Duration,
    },
    /// The run waits for samples that are assigned to a worker and not trained yet.
    Samples {
        /// The node of the worker that the samples are assigned to, or the number of that worker's slot if no node has
        /// it.
        holder: Name,
        /// The number of samples that are not trained yet.
        samples: u64,
    },
    /// A thing that the run waited for, as a text that was read from a file about an earlier run. Nodes never send this
    /// variant.
    #[serde(skip)]
    Told(Sentence),
}

/// A task that a run waits for another node to finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeTask {
    /// The other node has to prepare for the run.
    GetReady,
    /// The other node has to start a worker in place of one that is gone.
    RestartWorker,
    /// The other node's worker has to return to the measured weights that the run keeps as its result.
    RestoreMeasuredWeights,
    /// The other node has to let its workers make their last batches.
    MakeLastBatches,
    /// The other node has to receive batches that it missed, as a range or as a snapshot (a copy of the weights).
    CatchUp,
    /// The other node has to apply all batches that the waiting node has applied.
    HaveSameBatches,
    /// The other node has to agree with the waiting node on the nodes that end the run together.
    AgreeOnMembers,
    /// The other node has to report the digest of its weights.
    ReportDigest,
    /// The other node has to measure the quality of the model.
    MeasureModel,
}

impl WaitingFor {
    /// Returns an entry for a task that a run waits for another node to finish.
    #[must_use]
    pub fn node(name: &str, task: NodeTask) -> Self {
        let node = name.into();
        Self::Node { node, task }
    }

    /// Returns true if both entries say that a run waits for the same thing, apart from numbers that change meanwhile.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Silent { node: one, .. }, Self::Silent { node: other, .. })
            | (Self::Samples { holder: one, .. }, Self::Samples { holder: other, .. }) => one == other,
            _ => self == other,
        }
    }
}

/// Returns true if a run still waits for the same things in the same order.
#[must_use]
pub fn is_the_same(before: &[WaitingFor], now: &[WaitingFor]) -> bool {
    before.len() == now.len() && before.iter().zip(now).all(|(one, other)| one.is_same(other))
}

/// Joins all things that a run waits for into one text, which follows "waiting for".
#[must_use]
pub fn joined(waiting: &[WaitingFor]) -> String {
    let texts: Vec<String> = waiting.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl fmt::Display for WaitingFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::OwnWorkers => "this node's workers to attach",
            Self::OwnData => "this node's workers to open the data",
            Self::OtherNodes => "other nodes to get ready",
            Self::OwnExchange => "this node to start exchanging batches",
            Self::OwnWorkerRestart => "this node's worker to be started again",
            Self::OwnMeasuredWeights => {
                "this node to restore the weights that it measured, when all workers have made their last batches"
            }
            Self::OwnLastBatches => "this node's workers to make their last batches",
            Self::OwnLedger => "another node's ledger, because this node's is damaged",
            Self::OwnDigests => "this node's workers to report their digests",
            Self::OwnModel => "this node to measure and save the model",
            Self::OwnSamples => "samples that a worker of this node has trained but not sent",
            Self::AnyWorker => "a node with workers, because this node came to the run without any",
            Self::Node { node, task } => return write!(f, "{node} to {task}"),
            Self::FirstMessage(node) => return write!(f, "the first message from {node}"),
            Self::Silent { node, silence, limit } => {
                let (silence, limit) = (silence.as_secs(), limit.as_secs());
                return write!(f, "{node}, silent for {silence} s, given up at {limit} s");
            }
            Self::Samples { holder, samples } => {
                return write!(f, "{samples} samples that are assigned to {holder}");
            }
            Self::Told(text) => text,
        };
        f.write_str(text)
    }
}

impl fmt::Display for NodeTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GetReady => "get ready",
            Self::RestartWorker => "start its worker again",
            Self::RestoreMeasuredWeights => "restore the weights that it measured",
            Self::MakeLastBatches => "let its workers make their last batches",
            Self::CatchUp => "receive the batches that it missed",
            Self::HaveSameBatches => "have the same batches as this node",
            Self::AgreeOnMembers => "agree on the nodes that end the run together",
            Self::ReportDigest => "report its digest",
            Self::MeasureModel => "measure the model",
        })
    }
}

impl Serialize for WaitingFor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            Self::serialize(self, serializer)
        }
    }
}

impl<'de> Deserialize<'de> for WaitingFor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer).map(|text| Self::Told(text.into()))
        } else {
            Self::deserialize(deserializer)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    fn silent(node: &str, seconds: u64) -> WaitingFor {
        WaitingFor::Silent {
            node: node.into(),
            silence: Duration::from_millis(seconds * 1000 + 900),
            limit: Duration::from_secs(30),
        }
    }

    fn samples(samples: u64) -> WaitingFor {
        let holder = "vm-1".into();
        WaitingFor::Samples { holder, samples }
    }

    #[test]
    fn numbers_may_count_on_and_names_may_not_change() {
        let same = WaitingFor::is_same;
        assert!(same(&silent("vm-1", 12), &silent("vm-1", 13)));
        assert!(!same(&silent("vm-1", 12), &silent("vm-2", 12)));
        assert!(same(&samples(3), &samples(2)));
        let digest = WaitingFor::node("vm-1", NodeTask::ReportDigest);
        assert!(same(&digest, &digest));
        assert!(!same(&silent("vm-1", 12), &digest));
        assert!(!same(&digest, &WaitingFor::node("vm-1", NodeTask::MeasureModel)));
        assert!(!is_the_same(&[], &[digest]));
        assert!(is_the_same(&[], &[]));
    }

    #[test]
    fn people_and_files_read_words() {
        let ready = WaitingFor::node("vm-3", NodeTask::GetReady);
        let table = [
            (WaitingFor::OwnDigests, "this node's workers to report their digests"),
            (ready, "vm-3 to get ready"),
            (WaitingFor::FirstMessage("vm-3".into()), "the first message from vm-3"),
            (silent("vm-19d5", 12), "vm-19d5, silent for 12 s, given up at 30 s"),
            (samples(70), "70 samples that are assigned to vm-1"),
        ];
        for (waiting, text) in &table {
            assert_eq!(waiting.to_string(), *text);
            assert_eq!(serde_json::to_string(waiting).unwrap(), format!("\"{text}\""));
        }
        assert_eq!(
            joined(&table.map(|(waiting, _)| waiting)[1..3]),
            "vm-3 to get ready; the first message from vm-3"
        );
    }

    #[test]
    fn words_of_a_file_are_shown_as_they_are_and_never_sent() {
        let told: WaitingFor = serde_json::from_str("\"vm-3 to tell its digest\"").unwrap();
        assert_eq!(told, WaitingFor::Told("vm-3 to tell its digest".into()));
        assert_eq!(told.to_string(), "vm-3 to tell its digest");
        assert!(encode(&told).is_err());
        let sent = silent("vm-1", 12);
        assert_eq!(decode(&encode(&sent).unwrap()), Ok(sent));
        // The index of the variant that is never sent, with an empty text.
        assert!(decode::<WaitingFor>(&[16, 0]).is_err());
        assert!(decode::<WaitingFor>(&[11]).is_ok());
    }
}
