//! The input of a node's exchange of a run (events) and its output (effects, which its actor carries out).

use std::path::PathBuf;
use std::sync::Arc;

use protocol::ids::{NodeId, OriginId};
use protocol::wire::attach::ToWorker;
use protocol::wire::frame::Kind;
use protocol::wire::link::Message;
use protocol::wire::prefix::Prefix;
use protocol::wire::run_plan::Participant;

use crate::checkpoint::Header;
use crate::exchange::Breach;
use crate::ledger::AuditError;
use crate::run::{ExchangeOrder, RunEvent, Settlement, WorkerKey};

/// An event that a node's exchange of batches in a run handles.
#[derive(Clone, Debug)]
pub(crate) enum RunExchangeEvent {
    /// An order of the run's core. If the order gives a worker a place in the run, `origin` names the worker's new
    /// stream of batches.
    Order { order: ExchangeOrder, origin: OriginId },
    /// A connection to a peer is up, possibly in place of an earlier one.
    LinkUp(NodeId),
    /// The connection to a peer is down, and all messages in flight on it are lost.
    LinkDown(NodeId),
    /// A message has come over the current connection to a peer.
    Received { from: NodeId, message: Message },
    /// Bytes have left on the connection to a peer since the last tick, so the connection is alive even if the peer
    /// confirms nothing.
    Sent(NodeId),
    /// A worker of this node has made a batch; its encoded bytes.
    Batch { worker: WorkerKey, bytes: Arc<[u8]> },
    /// A worker of this node has reached a step of sequential averaging, in which a partial sum goes from worker to
    /// worker. `prefix` holds what the worker itself adds to the sum.
    Prefix { worker: WorkerKey, prefix: Prefix },
    /// A worker of this node sends a message to another stage of its pipeline.
    Flow { worker: WorkerKey, bytes: Arc<[u8]> },
    /// A worker has saved its private state after its batch `sequence`; `None` if it could not.
    Saved {
        worker: WorkerKey,
        sequence: Option<u64>,
        path: PathBuf,
    },
    /// The checkpoint's file has been written, or writing it has failed.
    CheckpointWritten,
    /// One tick of the exchange's clock has passed: it is time for periodic work, such as resending and audits.
    Tick,
}

/// An action that a node's exchange asks its actor to carry out.
#[derive(Clone, Debug)]
pub(crate) enum RunExchangeEffect {
    /// Set up a link to a participant, and set it up again whenever it breaks.
    Connect(Participant),
    /// Drop the current connection to a peer, so that a new one is made.
    Reconnect(NodeId),
    /// End the link to a peer for good.
    Disconnect(NodeId),
    /// Tell the link to a peer that the peer is silent or gone, or that it no longer is.
    Absent { peer: NodeId, absent: bool },
    /// Send a message over the link to a peer. A link whose queue is full is given up.
    Send { to: NodeId, message: Message },
    /// Start or stop passing a worker's batches to the exchange: only workers with a place in the run are heard.
    Hear { worker: WorkerKey, is_heard: bool },
    /// Send a message to a worker.
    Tell { worker: WorkerKey, message: ToWorker },
    /// Send a worker a frame of this kind with these contents.
    Deliver {
        worker: WorkerKey,
        kind: Kind,
        contents: Arc<[u8]>,
    },
    /// Close a worker's socket: its process ends, and another one is started.
    HangUp(WorkerKey),
    /// Pass an event to the run's core.
    Run(RunEvent),
    /// Pass the result of the exchange to the run. The caller must still add the bytes sent over links.
    Settle(Box<Settlement>),
    /// Send the run's actor the exchange's figures, for this node's next record of statistics.
    Report,
    /// Write the current ledger (the node's replica) to a file.
    Write {
        occasion: WriteOccasion,
        path: PathBuf,
        header: Box<Header>,
    },
    /// Tell people a piece of news, as a log notice.
    Notice(ExchangeNews),
}

/// The reason for which a ledger (the node's replica) is written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOccasion {
    /// The replica is written as a checkpoint during a run: [`RunExchangeEvent::CheckpointWritten`] follows.
    Checkpoint,
    /// The replica is written as the final checkpoint, from which the ended run can be continued later. The run does
    /// not wait for it.
    Last,
    /// The replica is written in place of a model that could not be saved: [`RunEvent::Kept`] follows.
    Kept,
}

/// A piece of news about an exchange that people are told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExchangeNews {
    /// A node with this name joins the run.
    Joined(String),
    /// A snapshot is being sent to this peer.
    Giving(NodeId),
    /// A merged range was applied: the sum of this many successive batches of the origin (a worker's stream of
    /// batches).
    RangeApplied { origin: OriginId, batches: u64 },
    /// A memory error has flipped a bit of a batch that this node keeps for other nodes.
    Spoilt,
    /// One bit of the weight with this index had flipped in this node's replica and has been corrected.
    Mended(usize),
    /// This node's replica is damaged.
    Damaged(AuditError),
    /// A peer's replica has replaced this node's damaged one.
    Healed,
    /// No checkpoint is written, because this node's replica is damaged.
    CheckpointSkipped,
    /// A worker's saved state does not fit the batches of this node's replica and is not used.
    StateDropped(PathBuf),
    /// A peer sent something that no honest member sends: from now on nothing is taken from it.
    Quarantined { peer: NodeId, reason: Breach },
    /// A worker sent an invalid batch.
    BatchRejected(String),
    /// A worker sent a message to a stage that its pipeline does not have, so that it was disconnected.
    FlowRejected,
}
