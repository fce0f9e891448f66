//! Messages to the membership's actor, and its arguments.

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

/// State of this node's attempt to join a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinState {
    /// This node tries to join, and has heard no other node yet.
    Alone,
    /// Another node has this node's name, and this node waits for the name; the text is one sentence.
    Waits(String),
    /// This node has joined: it receives beats (periodic state messages) from a member of the cluster.
    Member,
    /// The cluster does not accept this node as a member.
    Refused(Unwelcome),
}

/// Message to the actor that keeps track of the cluster's members.
#[derive(RactorMessage)]
pub(crate) enum MembershipMessage {
    /// A session with another process is ready or gone.
    Session(SessionEvent),
    /// A peer has sent a beat, its periodic state message.
    Beat(Box<Beat>),
    /// A peer has answered a beat of this node.
    Echo {
        from: NodeId,
        /// Number of this node's beat (periodic state message) that was answered.
        number: u64,
    },
    /// A peer leaves the cluster.
    Leaving(NodeId),
    /// A peer does not accept this node as a member.
    Unwelcome(Unwelcome),
    /// An attempt to reach a node is over.
    Dialled(NodeId, DialOutcome),
    /// This node leaves: say good-bye to all nodes. The reply is sent when all have heard it.
    Leave(RpcReplyPort<()>),
    /// Report the members of the cluster to a client.
    Nodes(RpcReplyPort<Payload<Reply>>),
    /// This node's own description (name, address, device and number of workers) has changed.
    Me(NodeInfo),
    /// This node's state in a run has changed: send a beat (state message) to all nodes now.
    Run(Vec<RunBeat>, Phase),
    /// Send a control message to one peer.
    Send { to: NodeId, message: Box<ControlMessage> },
    /// Send a control message to all peers.
    Broadcast(Box<ControlMessage>),
    /// Periodic tick of the actor's clock, at which it looks for silent members, dials members and sends beats.
    Tick,
}

/// Arguments with which the actor that keeps track of the cluster's members is started.
pub(crate) struct MembershipArguments {
    pub(crate) me: NodeInfo,
    /// Sessions of this process with other processes, over which the actor sends messages to the cluster's members.
    pub(crate) sessions: Sessions,
    /// Protection of the connections that this node dials: TLS, or plain text within one machine.
    pub(crate) security: Security,
    /// Interval between two ticks of the actor's clock.
    pub(crate) tick: Duration,
    /// Intervals and time limits of the cluster's membership.
    pub(crate) times: MembershipTimes,
    /// The run's actor, which is told which nodes are alive, and what their beats say about runs.
    pub(crate) parent: DerivedActorRef<RunEvent>,
    /// Channel for the state of this node's attempt to join a cluster.
    pub(crate) joining: watch::Sender<JoinState>,
}
