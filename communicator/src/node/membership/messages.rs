//! What the membership's actor is told, what it tells, and what it is started with.

use protocol::reasons::Unwelcome;
use std::time::Duration;

use protocol::ids::NodeId;
use protocol::wire::control::{Beat, ControlMessage, NodeInfo, Phase, Reply};
use protocol::wire::run_beat::RunBeat;
use ractor::{DerivedActorRef, RpcReplyPort};
use ractor_cluster::RactorMessage;
use tokio::sync::watch;

use crate::control::{Payload, SessionEvent, Sessions};
use crate::node::roster::DialOutcome;
use crate::run::RunEvent;
use crate::timing::MembershipTimes;
use crate::transport::Security;

/// How this node stands with the cluster that it was to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinState {
    /// It has heard of nobody.
    Alone,
    /// Another node has its name, for this long; one sentence.
    Waits(String),
    /// A member's beats come.
    Member,
    /// It cannot be a member.
    Refused(Unwelcome),
}

/// What the membership is told.
#[derive(RactorMessage)]
pub(crate) enum MembershipMessage {
    /// Something happened to a session.
    Session(SessionEvent),
    /// A peer's beat.
    Beat(Box<Beat>),
    /// A peer's answer to a beat.
    Echo {
        from: NodeId,
        /// The beat's number.
        number: u64,
    },
    /// A peer leaves.
    Leaving(NodeId),
    /// A peer does not want this node.
    Unwelcome(Unwelcome),
    /// An attempt to reach a node is over.
    Dialled(NodeId, DialOutcome),
    /// Say good-bye to everybody; answered when all have heard it.
    Leave(RpcReplyPort<()>),
    /// Who is there?
    Nodes(RpcReplyPort<Payload<Reply>>),
    /// This node's own description has changed.
    Me(NodeInfo),
    /// This node's state in a run has changed: tell everybody now.
    Run(Vec<RunBeat>, Phase),
    /// A control message to one peer.
    Send { to: NodeId, message: Box<ControlMessage> },
    /// A control message to all peers.
    Broadcast(Box<ControlMessage>),
    /// Some time has passed.
    Tick,
}

/// What the actor is started with.
pub(crate) struct MembershipArguments {
    pub(crate) me: NodeInfo,
    /// Its sessions.
    pub(crate) sessions: Sessions,
    /// How it dials.
    pub(crate) security: Security,
    /// How often its clock ticks.
    pub(crate) tick: Duration,
    /// How long it waits for whom.
    pub(crate) times: MembershipTimes,
    /// Who wants to know who is alive, and how far the others' runs are.
    pub(crate) parent: DerivedActorRef<RunEvent>,
    /// Where it is told how this node stands.
    pub(crate) joining: watch::Sender<JoinState>,
}
