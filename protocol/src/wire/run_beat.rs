//! The state of a run that nodes send each other repeatedly: everything that another node needs in order to go on and
//! to end the run.
//!
//! A beat holds the sender's own state and the newest states of all other participants that the sender has heard of. So
//! two nodes that reach each other only over a third one know of each other's progress, life and end. Each participant
//! makes and numbers its own states: of two, the one with the higher number is the newer, whichever node passed it on.

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, RunId};
use crate::reasons::Divergence;
use crate::stats::WorkerStats;
use crate::stats::measured::{Course, NodeUsage, Scores};
use crate::weights::digest::Digest;
use crate::wire::phase::Phase;
use crate::wire::run_plan::RunPlan;

/// A run as one node knows it, as part of the node's periodic state message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunBeat {
    pub run: RunId,
    /// The run's plan with the participants, once it is decided.
    pub plan: Option<RunPlan>,
    /// Cause for which the run ends early; none if it does not.
    pub stop: Option<StopReason>,
    /// The divergence because of which the run cannot go on at any node; none as long as it has not diverged.
    pub diverged: Option<Divergence>,
    /// The states of the participants, the sender's own first.
    pub states: Vec<(NodeId, ParticipantState)>,
}

impl RunBeat {
    /// Returns the phase of the run at the node that sent this state message. A node that still opens data after the
    /// plan is decided counts as training.
    #[must_use]
    pub fn phase_of(&self, node: NodeId) -> Phase {
        let own = self.states.iter().find(|(one, _)| *one == node);
        match own.map(|(_, state)| state) {
            None => Phase::Ended,
            Some(own) if own.ended || own.withdrawn => Phase::Ended,
            Some(own) if own.decided => Phase::Finishing,
            Some(own) if own.closed || own.stands_by => Phase::Settling,
            Some(_) if self.plan.is_none() => Phase::Preparing,
            Some(_) => Phase::Training,
        }
    }
}

/// A participant's state in a run, as the participant itself reports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the flags are independent, and several can be true at once"
)]
pub struct ParticipantState {
    /// Number of this state. The participant counts it up with every change, and other nodes keep the state with the
    /// highest number.
    pub number: u64,
    /// True once all workers of the participant have ended their streams of batches and will make no further batch.
    pub closed: bool,
    /// True while one of the participant's workers, which has measured weights that reach the target, waits to
    /// restore them until all other workers have made their last batches.
    pub stands_by: bool,
    /// True while the participant has no new worker in place of a lost one that its pipeline needs.
    pub unmanned: bool,
    /// True while the participant's workers have nothing to train, though samples are missing.
    pub starved: bool,
    /// Fingerprint of the participant's frontier: equal for participants that have applied the same batches.
    pub fingerprint: u64,
    /// True while a large message (a merged range, snapshot or bundle) is being sent to or from the participant, so
    /// that it will soon have further batches.
    pub catching_up: bool,
    /// Number of the participant's next attempt to agree on the end of the run, as far as it knows: a node that takes
    /// its ballot back counts the number up, and all others follow.
    pub attempt: u64,
    /// The participant's ballot on how it would end the run: it does so as soon as all members in the ballot cast the
    /// same one.
    pub ballot: Option<Ballot>,
    /// True once the participant has seen only equal ballots (votes) on the end of the run: from then on it takes no
    /// further batch.
    pub frozen: bool,
    /// True once the participant has seen that all members that end the run with it take no further batch. Cannot be
    /// taken back.
    pub decided: bool,
    /// The result with which the participant ended the run.
    pub settled: Option<Settled>,
    /// True if the participant's model is saved, false if saving failed; none while it tries.
    pub saved: Option<bool>,
    /// True once the run is over for the participant.
    pub ended: bool,
    /// True if the participant has withdrawn from a run that goes on without it: it has left, or could not take part.
    pub withdrawn: bool,
    /// Norm of the changes that the participant's workers had learned and not sent when it left the run.
    pub residual_lost: f64,
    /// Participants that this one does not wait for any more, each with the reason.
    pub given_up: Vec<(NodeId, GivenUp)>,
}

impl ParticipantState {
    /// Returns true if the participant has given this node up and does not wait for it any more.
    #[must_use]
    pub fn gives_up(&self, node: NodeId) -> bool {
        self.given_up.iter().any(|(one, _)| *one == node)
    }
}

/// A participant's vote on the end of a run: the batches and the members with which it would end the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ballot {
    /// Fingerprint of the frontier (the last batch of each worker) with which the participant would end the run; it
    /// stands for the batches that the model contains.
    pub fingerprint: u64,
    /// Fingerprint of the members that end the run together.
    pub members: u64,
    /// Number of the attempt to agree on the end. A node that takes its ballot back counts it up, and all others
    /// follow, so that no node casts the same ballot twice.
    pub attempt: u64,
}

/// Reason why a participant does not wait for another node any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GivenUp {
    /// The node was given up because it was silent for too long. If it comes back, it is waited for again.
    Silent,
    /// The node was given up because it has left the cluster, withdrawn from the run, or ended the run without waiting
    /// for the participant that gives it up.
    Gone,
    /// The node was given up because it sent something that no honest node sends.
    Lied,
    /// The node was given up because batches can be exchanged with it neither directly nor over other nodes.
    OutOfReach,
    /// The node was given up because it fell silent after all had agreed on how to end the run.
    SilentAtTheEnd,
}

impl GivenUp {
    /// Returns true if the participant has broken with the node for good, so that the two cannot end the run together.
    #[must_use]
    pub const fn is_a_rift(self) -> bool {
        matches!(self, Self::Lied | Self::OutOfReach | Self::SilentAtTheEnd)
    }

    /// Returns words for people about a node that was given up for this reason.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Silent | Self::SilentAtTheEnd => "is silent",
            Self::Gone => "has left the run",
            Self::Lied => "is in quarantine",
            Self::OutOfReach => "cannot be reached",
        }
    }
}

/// Reason why a run ends before all its samples are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StopReason {
    /// The run ends because a user has asked for it.
    Asked,
    /// The run ends because its target, an accuracy or a loss, is reached.
    TargetReached,
    /// The run ends because as many evaluations in a row as the job's patience have brought no lower loss.
    PatienceOver,
    /// The run ends because its time limit is over.
    TimeUp,
    /// The run ends at a node because the other nodes ended it while that node was unreachable.
    OthersEnded,
}

impl StopReason {
    /// Returns the reason of a run's early end as a word for scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Asked => "stopped",
            Self::TargetReached => "target_reached",
            Self::PatienceOver => "patience_over",
            Self::TimeUp => "time_up",
            Self::OthersEnded => "others_ended",
        }
    }
}

/// The result with which one node ended a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settled {
    /// Digest (checksum of the weights) recomputed from the node's ledger, its exact replica.
    pub digest: Digest,
    /// The amount that the node's weights add to the digest of the whole model: equal to `digest` unless the node holds
    /// a stage.
    pub whole: Digest,
    /// True if the weights of the node's workers have the same digest.
    pub workers_agree: bool,
    /// Statistics of the node's workers.
    pub stats: WorkerStats,
    /// Number of samples in all batches that the node has applied, those of lost nodes included.
    pub samples: u64,
    /// Number of samples that were trained more than once, in all batches that the node has applied.
    pub repeated: u64,
    /// Number of bytes that the node sent to other nodes on the links of the run.
    pub bytes_sent: u64,
    /// Seconds from the first step to the last batch applied.
    pub seconds: f64,
    /// Resources that the node used on its machine.
    pub usage: NodeUsage,
    /// Evaluations that the node made during the run.
    pub course: Course,
    /// Scores of the model on the evaluation samples; none if the node has not measured them.
    pub scores: Option<Scores>,
}
