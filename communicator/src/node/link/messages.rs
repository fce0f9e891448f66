//! Messages to and from a link's actor, and its arguments.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use protocol::ids::{NodeId, RunId};
use protocol::wire::link::Message;
use protocol::wire::run_plan::Participant;
use ractor::DerivedActorRef;
use ractor_cluster::RactorMessage;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::timing::LinkTimes;
use crate::transport::{Security, Stream};

/// Bytes sent and received over a link to a peer in this run, over all its connections.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Bytes received over the link.
    pub(crate) bytes_in: AtomicU64,
    /// Bytes sent over the link.
    pub(crate) bytes_out: AtomicU64,
}

/// Message to the actor that keeps a link to one peer.
#[derive(RactorMessage)]
pub(crate) enum LinkMessage {
    /// Dial the peer if the link has no connection.
    Dial,
    /// A connection of the link was made, and both sides have said who they are.
    Up {
        stream: Stream,
        /// True if this side has dialled the connection.
        dialled: bool,
    },
    /// The link's connection with this number is gone.
    Down(u64),
    /// Close the link's present connection, and make a new one.
    Cut,
    /// The run takes the peer for silent or gone (true), or hears it again (false).
    Absent(bool),
}

/// Notice of a link's actor to its parent, the exchange's actor.
pub(crate) enum LinkNotice {
    /// A connection to the peer is up.
    Up {
        peer: NodeId,
        generation: u64,
        /// Queue of the messages to be written on the connection.
        outbox: mpsc::Sender<Message>,
    },
    /// A connection to the peer is gone.
    Down { peer: NodeId, generation: u64 },
    /// A message came from the peer over the link.
    Received {
        peer: NodeId,
        /// Number of the connection on which the message came.
        generation: u64,
        message: Message,
        /// Permit for the queue of unhandled messages from the peer: dropping it makes room for the next one.
        permit: Option<OwnedSemaphorePermit>,
    },
}

/// Arguments with which the actor of a link to a peer is started.
pub(crate) struct LinkArguments {
    pub(crate) me: NodeId,
    /// Tau release of this node.
    pub(crate) version: String,
    pub(crate) run: RunId,
    pub(crate) peer: Participant,
    /// Protection of the link's connections: TLS, or plain text within one machine.
    pub(crate) security: Security,
    /// Intervals and time limits of the link.
    pub(crate) times: LinkTimes,
    /// Counters of the bytes sent and received over the link.
    pub(crate) traffic: Arc<Traffic>,
    /// Actor that gets the notices of the link.
    pub(crate) parent: DerivedActorRef<LinkNotice>,
}
