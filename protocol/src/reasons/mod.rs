//! Why a run failed, why a node takes no part in one, and why a request is refused. Nodes decide by the variants; the
//! sentences are for people.

pub mod waiting;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bounded::{BoundedText, BoundedVec, Name, Sentence};
use crate::ids::RunId;
use crate::job::Job;

/// Nodes left out of a run that are named; the rest are counted.
pub const LEFT_OUT_MAX: usize = 16;
/// Reasons in one refusal: one for each node of a cluster, and a few about the run.
pub const REFUSALS_MAX: usize = (1 << 10) + 8;

/// A file's path, for people.
pub type PathText = BoundedText<{ 4 << 10 }>;

/// Why a node takes no part in a run. The sentence follows the node's name.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Excluded {
    /// It is about to end, and begins nothing.
    #[error("the node is about to end")]
    AboutToEnd,
    /// It was asked to end while it took part.
    #[error("this node was asked to end, and the other nodes continue with its samples")]
    AskedToEnd,
    /// It was in this run before.
    #[error("this run has already ended on the node")]
    AlreadyEnded,
    /// It is in another run.
    #[error("the node is busy with run {0}")]
    Busy(RunId),
    /// No worker came in time.
    #[error("no worker is attached to the node")]
    NoWorker,
    /// Its workers do not agree on the data.
    #[error("the node's workers found different data")]
    WorkersDisagree,
    /// A worker's words, or the node's own about a model that it cannot hold.
    #[error("{0}")]
    Unable(Sentence),
    /// Nothing is heard of it.
    #[error("the node fell silent")]
    Silent,
    /// Its process is gone.
    #[error("the node's process has ended")]
    Dead,
    /// It has left.
    #[error("the node has left the cluster")]
    Left,
    /// Its data is not that of the run.
    #[error("the node holds other data under {0} than most nodes: give all nodes the same files")]
    OtherData(Sentence),
    /// Its model file is not that of the run.
    #[error("the node holds another model under {0} than most nodes: give all nodes the same file")]
    OtherModel(PathText),
    /// It computes other first weights from the same seed.
    #[error(
        "the node computes other initial weights for this job than most nodes: bring all nodes to the same release"
    )]
    OtherWeights,
    /// The pipelines are complete without it.
    #[error("the node is a spare: each pipeline takes exactly {0} nodes")]
    Spare(u32),
    /// It had refused to take part before the run began.
    #[error("this node could not prepare for the run")]
    NotPrepared,
    /// The others began before it was ready.
    #[error("the run began before this node was ready")]
    BegunWithout,
    /// Its checkpoint was not read in time.
    #[error("this node could not read its checkpoint in time")]
    CheckpointUnread,
    /// Another node holds its stage of the pipeline now.
    #[error("another node has taken this node's place")]
    Replaced,
    /// It needs a snapshot, and nobody has one.
    #[error("all nodes that had the run's weights are gone: continue from a checkpoint with 'tau start --resume'")]
    Stranded,
    /// The run ends while it still waits for a snapshot.
    #[error("the run ends before this node has caught up")]
    Behind,
    /// It has no weights to begin with, by a fault.
    #[error("this node has no ledger for the run; this is a fault in Tau, please report it")]
    NoLedger,
    /// Its exchange could not be started.
    #[error("the exchange could not be started: {0}")]
    ExchangeNotStarted(Sentence),
    /// Its exchange ended by a fault.
    #[error("the exchange failed: {0}; this is a fault in Tau, please report it")]
    ExchangeFailed(Sentence),
}

impl Excluded {
    /// The node's data is not that of a run of this job.
    #[must_use]
    pub fn other_data(job: &Job) -> Self {
        Self::OtherData(job.data.to_string().into())
    }

    /// The node's first weights are not those of a run of this job.
    #[must_use]
    pub fn other_weights(job: &Job) -> Self {
        match &job.from {
            Some(file) => Self::OtherModel(file.display().to_string().into()),
            None => Self::OtherWeights,
        }
    }
}

/// A node that a run begins without.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum LeftOut {
    /// One node, by name.
    #[error("{node}: {why}")]
    Node {
        /// Its name.
        node: Name,
        /// Why it takes no part.
        why: Excluded,
    },
    /// The number of further nodes, where there are too many to name.
    #[error("{0} more nodes are left out")]
    More(u32),
}

impl LeftOut {
    /// A node, by name, and why it takes no part.
    #[must_use]
    pub fn node(name: &str, why: Excluded) -> Self {
        let node = name.into();
        Self::Node { node, why }
    }
}

/// The nodes that a run begins without.
pub type AllLeftOut = BoundedVec<LeftOut, LEFT_OUT_MAX>;

/// Why a node refuses a client's request, or a run does not begin.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Refusal {
    /// A node cannot take part.
    #[error(transparent)]
    LeftOut(#[from] LeftOut),
    /// The remedy for nodes that cannot take part.
    #[error("add --allow-partial to begin without these nodes")]
    AllowPartial,
    /// A pipeline has more stages than there are nodes.
    #[error(
        "the model is to be cut into {stages} pipeline stages, each of which needs a node, but there are only {nodes} \
         nodes: start more nodes, or ask for fewer groups or slices"
    )]
    TooFewNodes {
        /// Stages of a pipeline.
        stages: u32,
        /// Nodes that can take part.
        nodes: u32,
    },
    /// The node that was asked to start the run cannot take part in it.
    #[error("{node} itself cannot take part: send the job to one of {}", others.join(", "))]
    AskedNode {
        /// Its name.
        node: Name,
        /// Those that can.
        others: BoundedVec<Name, REFUSALS_MAX>,
    },
    /// The job's settings do not go together, or not with the data.
    #[error("{0}")]
    Job(Sentence),
    /// No node has a checkpoint of the run that is to be resumed.
    #[error(
        "no node has a checkpoint of run {0}: name a run folder under the nodes' --dir that contains .checkpoint files, \
         or start a new run from the model file (--from)"
    )]
    NoCheckpoint(RunId),
    /// No node has a checkpoint of one of the stages.
    #[error(
        "no node has a checkpoint of pipeline stage {stage} of {stages} of run {run}: start the node that had it, with the \
         same --dir"
    )]
    NoStageCheckpoint {
        /// The run that is to be resumed.
        run: RunId,
        /// The stage, counted from 1.
        stage: u32,
        /// The number of stages.
        stages: u32,
    },
    /// The node that was asked is about to end.
    #[error("{0} is about to end: ask another node")]
    AboutToEnd(Name),
    /// The node that was asked is in a run.
    #[error("{node} is busy with run {run}: wait for it, or end it with 'tau stop'")]
    Busy {
        /// Its name.
        node: Name,
        /// The run.
        run: RunId,
    },
    /// A checkpoint needs a run that trains.
    #[error("no run is training here, so no checkpoint can be written")]
    NothingToCheckpoint,
    /// There is no run to stop.
    #[error("no run is in progress, so there is none to stop")]
    NothingToStop,
    /// The request could not be read, or exceeds a limit.
    #[error("{0}")]
    Invalid(Sentence),
}

/// All reasons of one refusal.
pub type Refusals = BoundedVec<Refusal, REFUSALS_MAX>;

/// Why a run failed, as one node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum RunFailure {
    /// It was stopped before it began.
    #[error("the run was stopped before it began")]
    Stopped,
    /// It cannot begin.
    #[error("{}", texts(.0).join("; "))]
    Refused(BoundedVec<Refusal, { LEFT_OUT_MAX + 1 }>),
    /// It was prepared for too long.
    #[error("the run was prepared but did not begin in time")]
    NotBegun,
    /// Another run, started at the same time, takes precedence.
    #[error("run {0} was started at the same time and takes precedence")]
    Overtaken(RunId),
    /// Another run has taken its place on the node that was asked to start it.
    #[error("another run replaced this run before it began")]
    Replaced,
    /// The node that was asked to start it stood still for too long.
    #[error("this node did not execute for {:.0} s (suspended or overloaded): start the run again", .0.as_secs_f64())]
    StoodStill(Duration),
    /// The node that was asked to start it is about to end.
    #[error("the node that was asked to start the run is about to end")]
    CoordinatorEnds,
    /// The node that was asked to start it is not heard any more.
    #[error("the node that started the run is gone")]
    CoordinatorLost,
    /// The node that was asked to start it is in another run, or in none.
    #[error("the node that started the run has cancelled the run")]
    Cancelled,
    /// The run may go on elsewhere.
    #[error("this node takes no part in the run: {0}")]
    Excluded(#[from] Excluded),
    /// The run goes on elsewhere, and this node may take over a stage.
    #[error(
        "the model is spread over other nodes: this node is a spare and takes over a pipeline stage if its node is lost"
    )]
    Spare,
    /// The weights or the loss are out of range, everywhere.
    #[error(transparent)]
    Diverged(#[from] Divergence),
    /// Every pipeline has lost a node.
    #[error("no pipeline is complete any more, because {} cannot be reached: {}", missing.join(", "), way_on(*resume))]
    NoPipeline {
        /// The names of the lost nodes.
        missing: BoundedVec<Name, REFUSALS_MAX>,
        /// The run, if a checkpoint of it was written.
        resume: Option<RunId>,
    },
    /// No node has measured the model.
    #[error("no node has measured the model")]
    NotMeasured,
    /// No node could measure and save the model.
    #[error("no node could measure and save the model{0}")]
    NotSaved(KeptWeights),
}

/// Where the weights are that no node could save as a model. The sentence goes on after "the model".
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum KeptWeights {
    /// In a checkpoint.
    #[error(
        "; its weights are kept in {checkpoint}: continue with 'tau start --resume {folder}', and see the nodes' logs for the cause"
    )]
    Checkpoint {
        /// The file.
        checkpoint: PathText,
        /// The run's folder.
        folder: PathText,
    },
    /// Nowhere: a checkpoint could not be written either.
    #[error(", nor keep its weights ({0}): see the nodes' logs")]
    Lost(Sentence),
    /// Unknown: the disk does not answer.
    #[error(", and this node's disk does not answer")]
    DiskHangs,
}

/// Why a run has diverged, and what follows.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{cause} with --optimiser {optimiser}: {}", self.remedy())]
pub struct Divergence {
    /// What was found out of range.
    pub cause: Sentence,
    /// The optimiser that the run was trained with.
    pub optimiser: Sentence,
    /// The same at a lower learning rate.
    pub calmer: Sentence,
    /// The run that trains the job again with that, if one does.
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

/// Why a node cannot be a member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Unwelcome {
    /// It has another release.
    #[error("{member} runs Tau {release}, but {node} runs {other}: bring all nodes to the same release")]
    OtherRelease {
        /// The member that says so.
        member: Name,
        /// The member's release.
        release: Name,
        /// The node.
        node: Name,
        /// The node's release.
        other: Name,
    },
    /// Another node has taken its name while it was silent.
    #[error("another node called '{0}' joined the cluster while this node was silent: stop one of the two")]
    Succeeded(Name),
    /// Another node has its name.
    #[error(
        "a node at {bearer} is already called '{name}': give this node another --name, or stop the other node first"
    )]
    NameTaken {
        /// The address of the other node.
        bearer: Name,
        /// The name.
        name: Name,
    },
}

impl RunFailure {
    /// The failure of a run that cannot begin for these reasons: those about the run itself, such as the remedy, stay however
    /// many nodes cannot take part.
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

/// Nodes left out of a run, as many of them as are named.
#[must_use]
pub fn left_out(nodes: Vec<LeftOut>) -> AllLeftOut {
    let more = nodes.len().saturating_sub(LEFT_OUT_MAX - 1);
    if more < 2 {
        return nodes.into();
    }
    let named = nodes.into_iter().take(LEFT_OUT_MAX - 1);
    named.chain([LeftOut::More(more as u32)]).collect()
}

/// The sentences of several reasons.
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
