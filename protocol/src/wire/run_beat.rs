//! What nodes tell each other of a run, again and again: everything that another has to know to go on, and to end.
//!
//! A beat holds the sender's own state and, beside it, the newest states of all other participants that it has heard
//! of. So two nodes that reach each other only over a third know of each other's progress, life and end. A state is
//! made and numbered by the participant itself: of two, the higher number is the newer, whoever handed it on.

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, RunId};
use crate::reasons::Divergence;
use crate::stats::WorkerStats;
use crate::stats::measured::{Course, NodeUsage, Scores};
use crate::weights::digest::Digest;
use crate::wire::phase::Phase;
use crate::wire::run_plan::RunPlan;

/// How far a run is, as one node knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunBeat {
    /// The run.
    pub run: RunId,
    /// Who takes part, once that is decided.
    pub plan: Option<RunPlan>,
    /// Why it is to end early.
    pub stop: Option<StopReason>,
    /// Why it cannot go on anywhere: it has diverged.
    pub diverged: Option<Divergence>,
    /// What participants say of themselves, the sender first.
    pub states: Vec<(NodeId, ParticipantState)>,
}

impl RunBeat {
    /// How far the run is at a node that says this. One that opens what was decided is taken for one that trains.
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

/// What a participant says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the flags are independent, and several can be true at once"
)]
pub struct ParticipantState {
    /// Counts up with every state.
    pub number: u64,
    /// Its workers have closed their origins: no further batch will be made there.
    pub closed: bool,
    /// One of its workers has measured weights that reach the target, and will bring them back when all others have closed.
    pub stands_by: bool,
    /// It has lost a worker that its pipeline waits for, and none has come in its place.
    pub unmanned: bool,
    /// Its workers have nothing to train, though samples are missing.
    pub starved: bool,
    /// Which batches it has: the fingerprint of its frontier.
    pub fingerprint: u64,
    /// A large parcel is on its way there: it will stand elsewhere before long.
    pub catching_up: bool,
    /// How many ballots were taken back before its next one, as far as it knows.
    pub attempt: u64,
    /// How it would end the run, as soon as all who take part in that say the same.
    pub ballot: Option<Ballot>,
    /// It has seen that all say the same, and takes no further batch.
    pub frozen: bool,
    /// It has seen that all who end the run with it are: there is no way back.
    pub decided: bool,
    /// What it ended with.
    pub settled: Option<Settled>,
    /// Whether its model is saved; none while it tries.
    pub saved: Option<bool>,
    /// The run is over there.
    pub ended: bool,
    /// It takes no part after all, and has given nothing.
    pub withdrawn: bool,
    /// The norm of what its workers had learned and not sent when it left the run.
    pub residual_lost: f64,
    /// Whom it does not wait for any more.
    pub given_up: Vec<(NodeId, GivenUp)>,
}

impl ParticipantState {
    /// Whether the participant does not wait for another one any more.
    #[must_use]
    pub fn gives_up(&self, node: NodeId) -> bool {
        self.given_up.iter().any(|(one, _)| *one == node)
    }
}

/// How a participant would end a run: with these batches, together with these members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ballot {
    /// The fingerprint of the batches.
    pub fingerprint: u64,
    /// The fingerprint of the members.
    pub members: u64,
    /// Whoever takes a ballot back counts on, and all others follow: nobody casts the same one twice.
    pub attempt: u64,
}

/// Why a participant is not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GivenUp {
    /// It was silent for too long. Should it come back, it is waited for again.
    Silent,
    /// It has left, withdrawn, or ended the run without the sender.
    Gone,
    /// It said what no honest node says.
    Lied,
    /// Nothing can be exchanged with it, over nobody.
    OutOfReach,
    /// It fell silent when all had agreed on how to end.
    SilentAtTheEnd,
}

impl GivenUp {
    /// Whether the sender will not have to do with it any more, so that the two cannot end the run together.
    #[must_use]
    pub const fn is_a_rift(self) -> bool {
        matches!(self, Self::Lied | Self::OutOfReach | Self::SilentAtTheEnd)
    }

    /// For people: what became of it.
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

/// Why a run ends before all its samples are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StopReason {
    /// The user said so.
    Asked,
    /// The evaluation accuracy that was wanted is reached.
    TargetReached,
    /// So many evaluations in a row as the job has patience for have brought no lower evaluation loss.
    PatienceOver,
    /// The time that was given is over.
    TimeUp,
    /// The others have ended it while this node could not be reached.
    OthersEnded,
}

impl StopReason {
    /// For scripts: what stopped it.
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

/// What a node ended a run with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settled {
    /// The digest recomputed from its ledger.
    pub digest: Digest,
    /// What these weights add to the whole model's digest: all of it, unless they are a stage.
    pub whole: Digest,
    /// Whether its workers' weights have the same digest.
    pub workers_agree: bool,
    /// What its workers did.
    pub stats: WorkerStats,
    /// The samples in its batches, those of nodes that are gone included.
    pub samples: u64,
    /// How many of them were trained more than once.
    pub repeated: u64,
    /// The bytes it sent on the data plane.
    pub bytes_sent: u64,
    /// First step to last batch applied.
    pub seconds: f64,
    /// What it took of its machine.
    pub usage: NodeUsage,
    /// What it has measured on the way.
    pub course: Course,
    /// How good the model is, once this node has measured it.
    pub scores: Option<Scores>,
}
