//! The input of a node's part in pipelines (events) and its output (effects, which its caller carries out).

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::ids::{NodeId, OriginId};

use crate::run::{Liveness, WorkerKey};

/// An event for a node's part in pipelines (networks whose stages are spread over nodes).
#[derive(Clone, Debug)]
pub(crate) enum PipelineEvent {
    /// A worker of this node sends a message to another stage of its pipeline.
    FromWorker { worker: WorkerKey, bytes: Arc<[u8]> },
    /// A message of a pipeline has come from a peer over the link.
    FromPeer { from: NodeId, bytes: Arc<[u8]> },
    /// The link to a peer is up.
    LinkUp(NodeId),
    /// The link to a peer is down, and all messages in flight on it are lost.
    LinkDown(NodeId),
    /// The liveness of participants has changed: some fell silent, speak again, or are gone.
    Liveness(Liveness),
    /// A node has joined the run as a further participant: the run's plan names it.
    Admitted,
    /// This node's workers may train the samples that were dealt to these slots (workers' numbers), as if the slots had
    /// no workers.
    TakeOver(BTreeSet<usize>),
    /// A worker of this node has disconnected or is to begin anew: it has lost its seat (its place in the run).
    WorkerLost,
}

/// An action that a node's part in pipelines asks its caller to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PipelineEffect {
    /// Send a pipeline's message over the link to a peer. The link is up.
    Send { to: NodeId, bytes: Arc<[u8]> },
    /// Give this node's worker a message from another stage.
    Deliver(Arc<[u8]>),
    /// Tell this node's worker that a node of its pipeline cannot be reached: the worker drops the minibatches in
    /// flight.
    Broken,
    /// Tell workers that a slot (a worker's number, to which samples are dealt) has lost its worker, or has one again.
    Slot { slot: usize, alive: bool },
    /// Tell workers that an origin (another worker's stream of batches) has ended or is out of reach, or may continue
    /// after all.
    Origin { origin: OriginId, alive: bool },
    /// Disconnect a worker of this node, which has addressed a stage that its pipeline does not have.
    HangUp(WorkerKey),
}
