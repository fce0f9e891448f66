//! Reasons why a run fails, why a node takes no part in a run, and why a request is refused. Nodes decide by the
//! variants of these enums; the sentences are for people.

pub mod waiting;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bounded::{BoundedText, BoundedVec, Name, Sentence};
use crate::ids::RunId;
use crate::job::Job;
use crate::job::data::{DataInfo, DataSpec};

/// Maximum number of entries about nodes that are left out of a run; beyond it, the last entry counts the remaining
/// nodes.
pub const LEFT_OUT_MAX: usize = 16;
/// Maximum number of reasons in one refusal: one for each node of a cluster, and a few about the run.
pub const REFUSALS_MAX: usize = (1 << 10) + 8;

/// Text of a file's path, for messages to people.
pub type PathText = BoundedText<{ 4 << 10 }>;

/// Reason why a node takes no part in a run. Its sentence follows the node's name.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Excluded {
    /// The node takes no part in a run because it is about to end.
    #[error("the node is about to end")]
    AboutToEnd,
    /// The node takes no further part in the run because it was asked to end.
    #[error("this node was asked to end, and the other nodes continue with its samples")]
    AskedToEnd,
    /// The node takes no part in the run because it took part in it before.
    #[error("this run has already ended on the node")]
    AlreadyEnded,
    /// The node takes no part in the run because it takes part in another.
    #[error("the node is busy with run {0}")]
    Busy(RunId),
    /// The node takes no part in the run because no worker attached to it in time.
    #[error("no worker is attached to the node")]
    NoWorker,
    /// The node takes no part in the run because its workers have read data that differs from one to another.
    #[error("the node's workers found different data")]
    WorkersDisagree,
    /// The node takes no part in the run. The sentence says why one of its workers cannot train or, if the node itself
    /// cannot hold the model, why not.
    #[error("{0}")]
    Unable(Sentence),
    /// The node is left out of the run because none of its beats (periodic state messages) are heard.
    #[error("the node fell silent")]
    Silent,
    /// The node is left out of the run because its process has ended.
    #[error("the node's process has ended")]
    Dead,
    /// The node is left out of the run because it has left the cluster.
    #[error("the node has left the cluster")]
    Left,
    /// The node takes no part in the run because its data is not the run's data.
    #[error("the node holds other data under {0} than most nodes: give all nodes the same files")]
    OtherData(Sentence),
    /// The node takes no part in the run because the samples of the module's own data are not the run's.
    #[error(
        "data() in {0} gives other samples on the node than on most nodes: give all nodes the same files; if only the \
         rounding of libraries differs, write fingerprint = \"counts\" in the file"
    )]
    OtherSamples(PathText),
    /// The node takes no part in the run because its copy of the module's code (a network that is Python code) differs
    /// from the run's.
    #[error(
        "the node holds another {0}, or other files that it imports, than most nodes: copy the whole folder to all nodes"
    )]
    OtherCode(PathText),
    /// The node takes no part in the run because the model file from which it would start is not the run's.
    #[error("the node holds another model under {0} than most nodes: give all nodes the same file")]
    OtherModel(PathText),
    /// The node takes no part in the run because the module (a network that is Python code) in its file has another number
    /// of weights than the run's.
    #[error(
        "the module in {file} has {weights} weights on the node, and {usual} on most nodes: give all nodes the same file \
         and the same release of PyTorch"
    )]
    OtherModule {
        /// The module's file.
        file: PathText,
        /// Number of the module's weights on the node.
        weights: u64,
        /// Number of the module's weights in the run.
        usual: u64,
    },
    /// The node takes no part in the run because it computes other first weights than the other nodes from the same
    /// seed.
    #[error(
        "the node computes other initial weights for this job than most nodes: bring all nodes to the same release"
    )]
    OtherWeights,
    /// The node takes no part in the run because the pipelines are complete without it. The number is that of the nodes
    /// in each pipeline.
    #[error("the node is a spare: each pipeline takes exactly {0} nodes")]
    Spare(u32),
    /// The node takes no part in the run because it reported, before the run began, that it could not prepare.
    #[error("this node could not prepare for the run")]
    NotPrepared,
    /// The node takes no part in the run because the other nodes began it before the node was ready.
    #[error("the run began before this node was ready")]
    BegunWithout,
    /// The node takes no part in the run because it did not read its checkpoint in time.
    #[error("this node could not read its checkpoint in time")]
    CheckpointUnread,
    /// The node takes no further part in the run because another node has taken over its pipeline stage.
    #[error("another node has taken this node's place")]
    Replaced,
    /// The node takes no further part in the run because it needs a snapshot (a copy of the weights), and no remaining
    /// node can give one.
    #[error(
        "all nodes that had the run's weights are gone: continue from a checkpoint with 'tau start --resume', or start the \
         run again if there is none"
    )]
    Stranded,
    /// The node takes no further part in the run because the run ends while the node still waits for a snapshot (a copy
    /// of the weights).
    #[error("the run ends before this node has caught up")]
    Behind,
    /// The node takes no part in the run because it has no replica of the weights (ledger) to begin with; that is a
    /// bug.
    #[error("this node has no ledger for the run; this is a fault in Tau, please report it")]
    NoLedger,
    /// The node takes no part in the run because its exchange of batches could not be started.
    #[error("the exchange could not be started: {0}")]
    ExchangeNotStarted(Sentence),
    /// The node takes no further part in the run because its exchange of batches ended early; that is a bug.
    #[error("the exchange failed: {0}; this is a fault in Tau, please report it")]
    ExchangeFailed(Sentence),
}

impl Excluded {
    /// Returns the reason for which a node with this data takes no part in a run of this job, whose data is `usual`: the
    /// data differs, or the code that reads it does.
    #[must_use]
    pub fn other_data(job: &Job, data: &DataInfo, usual: &DataInfo) -> Self {
        match job.model.module() {
            Some(file) if data.code != usual.code => Self::OtherCode(file.display().to_string().into()),
            Some(file) if job.data == DataSpec::Module => Self::OtherSamples(file.display().to_string().into()),
            _ => Self::OtherData(job.data.to_string().into()),
        }
    }

    /// Returns the reason for which a node takes no part in a run of this job: its first weights, of this number, differ
    /// from those of the run, whose number is `usual`.
    #[must_use]
    pub fn other_weights(job: &Job, weights: u64, usual: u64) -> Self {
        match (&job.from, job.model.module()) {
            (Some(file), _) => Self::OtherModel(file.display().to_string().into()),
            (None, Some(file)) => Self::OtherModule {
                file: file.display().to_string().into(),
                weights,
                usual,
            },
            (None, None) => Self::OtherWeights,
        }
    }
}

/// An entry about nodes that take no part in a run.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum LeftOut {
    /// One node that takes no part in a run, with the reason.
    #[error("{node}: {why}")]
    Node {
        /// The name of the node that takes no part.
        node: Name,
        /// The reason for which the node takes no part.
        why: Excluded,
    },
    /// The number of further nodes that take no part in a run, if there are too many to name.
    #[error("{0} more nodes are left out")]
    More(u32),
}

impl LeftOut {
    /// Returns the entry for one node and the reason why it takes no part.
    #[must_use]
    pub fn node(name: &str, why: Excluded) -> Self {
        let node = name.into();
        Self::Node { node, why }
    }
}

/// The nodes that take no part in a run, with the reasons.
pub type AllLeftOut = BoundedVec<LeftOut, LEFT_OUT_MAX>;

/// Reason why a node refuses a client's request, or why a run does not begin.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Refusal {
    /// One of the nodes cannot take part in the run.
    #[error(transparent)]
    LeftOut(#[from] LeftOut),
    /// Remedy, added after the reasons for which nodes cannot take part: the option `--allow-partial` begins the run
    /// without them.
    #[error("add --allow-partial to begin without these nodes")]
    AllowPartial,
    /// There are fewer nodes than a pipeline has stages.
    #[error(
        "the model is to be cut into {stages} pipeline stages, each of which needs a node, but there are only {nodes} \
         nodes: start more nodes, or ask for fewer groups or slices"
    )]
    TooFewNodes {
        /// Number of stages of one pipeline, each of which needs a node.
        stages: u32,
        /// Number of nodes that can take part.
        nodes: u32,
    },
    /// The node that was asked to start the run cannot take part in it.
    #[error("{node} itself cannot take part: send the job to one of {}", others.join(", "))]
    AskedNode {
        /// The name of the node that was asked to start the run.
        node: Name,
        /// The names of the nodes that can take part.
        others: BoundedVec<Name, REFUSALS_MAX>,
    },
    /// The job's settings contradict each other or do not suit the data.
    #[error("{0}")]
    Job(Sentence),
    /// No node has a checkpoint of the run to be resumed.
    #[error(
        "no node has a checkpoint of run {0}: name a run folder under the nodes' --dir that contains .checkpoint files, \
         or start a new run from the model file (--from)"
    )]
    NoCheckpoint(RunId),
    /// No node has a checkpoint of one pipeline stage of the run to be resumed.
    #[error(
        "no node has a checkpoint of pipeline stage {stage} of {stages} of run {run}: start the node that had it, with the \
         same --dir"
    )]
    NoStageCheckpoint {
        run: RunId,
        /// The pipeline stage of which no node has a checkpoint, from 1.
        stage: u32,
        /// The number of stages of one pipeline.
        stages: u32,
    },
    /// The request is refused because the node that received it is about to end.
    #[error("{0} is about to end: ask another node")]
    AboutToEnd(Name),
    /// The request is refused because the node that received it takes part in a run.
    #[error("{node} is busy with run {run}: wait for it, or end it with 'tau stop'")]
    Busy {
        /// The name of the node that received the client's request.
        node: Name,
        /// The run that the node takes part in.
        run: RunId,
    },
    /// A checkpoint was requested while no run is training.
    #[error("no run is training here, so no checkpoint can be written")]
    NothingToCheckpoint,
    /// A stop was requested while no run is in progress.
    #[error("no run is in progress, so there is none to stop")]
    NothingToStop,
    /// The request cannot be decoded, or exceeds a limit.
    #[error("{0}")]
    Invalid(Sentence),
}

/// All reasons of one refusal.
pub type Refusals = BoundedVec<Refusal, REFUSALS_MAX>;

/// Reason why a run failed, as one node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum RunFailure {
    /// The run failed because a client stopped it before it began.
    #[error("the run was stopped before it began")]
    Stopped,
    /// The run could not begin, for these reasons of nodes or of the job.
    #[error("{}", texts(.0).join("; "))]
    Refused(BoundedVec<Refusal, { LEFT_OUT_MAX + 1 }>),
    /// The run was prepared on the nodes, but did not begin in time.
    #[error("the run was prepared but did not begin in time")]
    NotBegun,
    /// The run gave way to another run, which was started at the same time.
    #[error("run {0} was started at the same time and takes precedence")]
    Overtaken(RunId),
    /// The run failed because another one replaced it on the node that was asked to start it.
    #[error("another run replaced this run before it began")]
    Replaced,
    /// The run failed because the node that was asked to start it did not execute for this long.
    #[error("this node did not execute for {:.0} s (suspended or overloaded): start the run again", .0.as_secs_f64())]
    StoodStill(Duration),
    /// The run failed because the node that was asked to start it is about to end.
    #[error("the node that was asked to start the run is about to end")]
    CoordinatorEnds,
    /// No beats (periodic state messages) are heard from the node that was asked to start the run.
    #[error("the node that started the run is gone")]
    CoordinatorLost,
    /// The run failed because the node that was asked to start it takes part in another run, or in none.
    #[error("the node that started the run has cancelled the run")]
    Cancelled,
    /// This node takes no part in the run, which may go on elsewhere.
    #[error("this node takes no part in the run: {0}")]
    Excluded(#[from] Excluded),
    /// This node is left over, because the run's pipelines are complete without it. It takes over a pipeline stage if
    /// the node that holds the stage is lost.
    #[error(
        "the model is spread over other nodes: this node is a spare and takes over a pipeline stage if its node is lost"
    )]
    Spare,
    /// The run failed because the weights or the loss are out of range on all nodes.
    #[error(transparent)]
    Diverged(#[from] Divergence),
    /// The run cannot go on because every pipeline has lost a node.
    #[error("no pipeline is complete any more, because {} cannot be reached: {}", missing.join(", "), way_on(*resume))]
    NoPipeline {
        /// The names of the nodes that the run's pipelines have lost.
        missing: BoundedVec<Name, REFUSALS_MAX>,
        /// The id to resume the run by, if a checkpoint of it was written.
        resume: Option<RunId>,
    },
    /// The run ended without a result, because no node has measured the model.
    #[error("no node has measured the model")]
    NotMeasured,
    /// The run ended without a saved model, because no node could measure and save it.
    #[error("no node could measure and save the model{0}")]
    NotSaved(KeptWeights),
}

/// Place where the weights are kept if no node could save them as a model. Its text is the end of a sentence and
/// follows the words "the model".
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum KeptWeights {
    /// The weights are kept in a checkpoint, from which the run can be resumed.
    #[error(
        "; its weights are kept in {checkpoint}: continue with 'tau start --resume {folder}', and see the nodes' logs for the cause"
    )]
    Checkpoint {
        /// Path of the checkpoint's file.
        checkpoint: PathText,
        /// Path of the run's folder, from which the run can be resumed.
        folder: PathText,
    },
    /// The run's weights are lost, because no checkpoint could be written either.
    #[error(", nor keep its weights ({0}): see the nodes' logs")]
    Lost(Sentence),
    /// The weights' place is unknown, because the disk does not answer.
    #[error(", and this node's disk does not answer")]
    DiskHangs,
}

/// The cause of a run's divergence, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{cause} with --optimiser {optimiser}: {}", self.remedy())]
pub struct Divergence {
    /// The weight or loss that was out of range, as a phrase.
    pub cause: Sentence,
    /// The optimiser settings with which the diverged run was trained.
    pub optimiser: Sentence,
    /// The same optimiser settings with a lower learning rate, which the remedy recommends.
    pub calmer: Sentence,
    /// The run that trains the job again with a lower learning rate; none if there is no such run.
    pub successor: Option<RunId>,
}

impl Divergence {
    fn remedy(&self) -> String {
        match self.successor {
            Some(run) => format!("run {run} trains the job again with --optimiser {}", self.calmer),
            None => format!("add --optimiser {}", self.calmer),
        }
    }
}

/// Reason why a node cannot be a member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Unwelcome {
    /// The node is refused because it runs another release of Tau than the members of the cluster.
    #[error("{member} runs Tau {release}, but {node} runs {other}: bring all nodes to the same release")]
    OtherRelease {
        /// Name of the member that reports the difference of releases.
        member: Name,
        /// Release of Tau that the member runs.
        release: Name,
        /// The name of the node that the cluster refuses.
        node: Name,
        /// Release of Tau that the refused node runs.
        other: Name,
    },
    /// The node is refused because another node, named here, has taken its name while it was silent.
    #[error("another node called '{0}' joined the cluster while this node was silent: stop one of the two")]
    Succeeded(Name),
    /// The node is refused because another node already has its name.
    #[error(
        "a node at {bearer} is already called '{name}': give this node another --name, or stop the other node first"
    )]
    NameTaken {
        /// The address of the node that already has the name.
        bearer: Name,
        /// The name that both nodes have.
        name: Name,
    },
}

impl RunFailure {
    /// Returns the failure of a run that cannot begin for these reasons. Reasons about the run itself, such as the
    /// remedy, are never dropped; nodes beyond the limit are only counted.
    #[must_use]
    pub fn refused(reasons: &[Refusal]) -> Self {
        let (mut nodes, mut others) = (Vec::new(), Vec::new());
        for reason in reasons {
            match reason {
                Refusal::LeftOut(node) => nodes.push(node.clone()),
                other => others.push(other.clone()),
            }
        }
        let nodes = left_out(nodes);
        Self::Refused(nodes.iter().cloned().map(Refusal::from).chain(others).collect())
    }
}

/// Returns the entries for nodes that take no part in a run. If there are too many, the last entry counts the remaining
/// ones.
#[must_use]
pub fn left_out(nodes: Vec<LeftOut>) -> AllLeftOut {
    let more = nodes.len().saturating_sub(LEFT_OUT_MAX - 1);
    if more < 2 {
        return nodes.into();
    }
    let named = nodes.into_iter().take(LEFT_OUT_MAX - 1);
    named.chain([LeftOut::More(more as u32)]).collect()
}

pub fn texts(reasons: &[impl ToString]) -> Vec<String> {
    reasons.iter().map(ToString::to_string).collect()
}

fn way_on(resume: Option<RunId>) -> String {
    match resume {
        Some(run) => format!(
            "start these nodes again with the same --dir, and continue from the last checkpoint with 'tau start --resume {run}'"
        ),
        None => "the trained weights are lost, because no checkpoint was written (--checkpoint-every)".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_stays_however_many_nodes_cannot_take_part() {
        let excluded = (0..20).map(|node| LeftOut::node(&format!("n{node}"), Excluded::NoWorker));
        let mut reasons: Vec<Refusal> = excluded.map(Refusal::from).collect();
        reasons.push(Refusal::AllowPartial);
        let RunFailure::Refused(told) = RunFailure::refused(&reasons) else {
            panic!("another failure");
        };
        assert_eq!(told.len(), LEFT_OUT_MAX + 1);
        assert_eq!(told[LEFT_OUT_MAX - 1], LeftOut::More(5).into());
        assert_eq!(told[LEFT_OUT_MAX], Refusal::AllowPartial);
    }

    #[test]
    fn reasons_read_as_sentences() {
        let spare = LeftOut::node("vm-3", Excluded::Spare(2));
        let refused = RunFailure::Refused(vec![spare.clone().into(), Refusal::AllowPartial].into());
        let asked = Refusal::AskedNode {
            node: "vm-1".into(),
            others: vec!["vm-2".into(), "vm-3".into()].into(),
        };
        let pipeline = |resume| RunFailure::NoPipeline {
            missing: vec!["vm-1".into(), "vm-2".into()].into(),
            resume,
        };
        let diverged = |successor| Divergence {
            cause: "a weight is out of range".into(),
            optimiser: "sgd:0.2".into(),
            calmer: "sgd:0.1".into(),
            successor,
        };
        let run = Some(RunId(7));
        let kept = KeptWeights::Checkpoint {
            checkpoint: "a/b.checkpoint".into(),
            folder: "a".into(),
        };
        for (sentence, expected) in [
            (LeftOut::More(3).to_string(), "3 more nodes are left out"),
            (
                refused.to_string(),
                "vm-3: the node is a spare: each pipeline takes exactly 2 nodes; \
                 add --allow-partial to begin without these nodes",
            ),
            (
                asked.to_string(),
                "vm-1 itself cannot take part: send the job to one of vm-2, vm-3",
            ),
            (
                RunFailure::StoodStill(Duration::from_millis(12_300)).to_string(),
                "this node did not execute for 12 s (suspended or overloaded): start the run again",
            ),
            (
                pipeline(run).to_string(),
                "no pipeline is complete any more, because vm-1, vm-2 cannot be reached: start these nodes again with the \
                 same --dir, and continue from the last checkpoint with 'tau start --resume 0000000000000007'",
            ),
            (
                pipeline(None).to_string(),
                "no pipeline is complete any more, because vm-1, vm-2 cannot be reached: the trained weights are lost, \
                 because no checkpoint was written (--checkpoint-every)",
            ),
            (
                diverged(None).to_string(),
                "a weight is out of range with --optimiser sgd:0.2: add --optimiser sgd:0.1",
            ),
            (
                diverged(run).to_string(),
                "a weight is out of range with --optimiser sgd:0.2: run 0000000000000007 trains the job again with \
                 --optimiser sgd:0.1",
            ),
            (
                RunFailure::NotSaved(kept).to_string(),
                "no node could measure and save the model; its weights are kept in a/b.checkpoint: continue with \
                 'tau start --resume a', and see the nodes' logs for the cause",
            ),
            (
                RunFailure::NotSaved(KeptWeights::Lost("disk full".into())).to_string(),
                "no node could measure and save the model, nor keep its weights (disk full): see the nodes' logs",
            ),
            (
                RunFailure::from(Excluded::Behind).to_string(),
                "this node takes no part in the run: the run ends before this node has caught up",
            ),
        ] {
            assert_eq!(sentence, expected);
        }
    }

    #[test]
    fn nodes_beyond_the_limit_are_counted() {
        let nodes = |count: usize| left_out(vec![LeftOut::node("vm", Excluded::Silent); count]);
        assert_eq!(nodes(LEFT_OUT_MAX).len(), LEFT_OUT_MAX);
        assert!(!nodes(LEFT_OUT_MAX).contains(&LeftOut::More(1)));
        assert_eq!(nodes(100).len(), LEFT_OUT_MAX);
        assert_eq!(nodes(100).last(), Some(&LeftOut::More(85)));
    }
}
