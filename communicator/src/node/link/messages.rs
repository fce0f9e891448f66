//! What a link's actor is told, what it tells, and what it is started with.

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

/// What has crossed a link in this run, over all its connections.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Bytes received.
    pub(crate) bytes_in: AtomicU64,
    /// Bytes sent.
    pub(crate) bytes_out: AtomicU64,
}

/// What a link is told.
#[derive(RactorMessage)]
pub(crate) enum LinkMessage {
    /// Try to reach the peer.
    Dial,
    /// A connection stands; both sides have said who they are.
    Up {
        stream: Stream,
        /// This side has dialled.
        dialled: bool,
    },
    /// The connection with this number is gone.
    Down(u64),
    /// Give the present connection up.
    Cut,
    /// Whether the peer is silent or gone, as far as the run knows.
    Absent(bool),
}

/// What a link tells.
pub(crate) enum LinkNotice {
    /// A connection is there.
    Up {
        peer: NodeId,
        generation: u64,
        /// What is written on it.
        outbox: mpsc::Sender<Message>,
    },
    /// A connection is gone.
    Down { peer: NodeId, generation: u64 },
    /// A message came.
    Received {
        peer: NodeId,
        /// On which of its connections.
        generation: u64,
        message: Message,
        /// Room for the next one, when this is done.
        permit: Option<OwnedSemaphorePermit>,
    },
}

/// What the actor is started with.
pub(crate) struct LinkArguments {
    pub(crate) me: NodeId,
    /// Its release.
    pub(crate) version: String,
    pub(crate) run: RunId,
    pub(crate) peer: Participant,
    /// How to dial.
    pub(crate) security: Security,
    /// How long it waits for what.
    pub(crate) times: LinkTimes,
    /// What is counted.
    pub(crate) traffic: Arc<Traffic>,
    /// Who is told of it.
    pub(crate) parent: DerivedActorRef<LinkNotice>,
}
