//! What happens to a node's half of pipelines, and what it wants done.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::ids::{NodeId, OriginId};

use crate::run::{Liveness, WorkerKey};

/// Something that has happened.
#[derive(Clone, Debug)]
pub(crate) enum PipelineEvent {
    /// A worker of this node sends a message to another stage of its pipeline.
    FromWorker { worker: WorkerKey, bytes: Arc<[u8]> },
    /// A message of a pipeline has come over the link to a peer.
    FromPeer { from: NodeId, bytes: Arc<[u8]> },
    /// The link to a peer is up.
    LinkUp(NodeId),
    /// The link to a peer is down, and what was under way on it is lost.
    LinkDown(NodeId),
    /// Participants have fallen silent, speak again, or are gone.
    Liveness(Liveness),
    /// The plan has a further participant.
    Admitted,
    /// This node's workers may train the samples of these slots, as if they had no workers.
    TakeOver(BTreeSet<usize>),
    /// A worker of this node has left its seat.
    WorkerLost,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PipelineEffect {
    /// Send a message of a pipeline over the link to a peer. The link is up.
    Send { to: NodeId, bytes: Arc<[u8]> },
    /// Give this node's worker a message from another stage.
    Deliver(Arc<[u8]>),
    /// Tell this node's worker that a node of its pipeline cannot be reached: it drops the minibatches under way.
    Broken,
    /// Tell workers that a slot has no worker any more, or has one again.
    Slot { slot: usize, alive: bool },
    /// Tell workers that an origin emits no more batches, or may emit some after all.
    Origin { origin: OriginId, alive: bool },
    /// Disconnect a worker of this node: it has addressed a message to a stage that its pipeline does not have.
    HangUp(WorkerKey),
}
