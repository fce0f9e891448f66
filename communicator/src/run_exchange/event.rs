//! What happens to a node's exchange of a run, and what it wants done.

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

/// Something that has happened.
#[derive(Clone, Debug)]
pub(crate) enum RunExchangeEvent {
    /// The run's core has given an order. A worker that it seats has a new origin, with this name.
    Order { order: ExchangeOrder, origin: OriginId },
    /// A connection to a peer is there, perhaps in place of another one.
    LinkUp(NodeId),
    /// The connection to a peer is gone, and what was under way on it is lost.
    LinkDown(NodeId),
    /// A message has come over the present connection to a peer.
    Received { from: NodeId, message: Message },
    /// Bytes have left for a peer since the last tick.
    Sent(NodeId),
    /// A worker of this node has made a batch.
    Batch { worker: WorkerKey, bytes: Arc<[u8]> },
    /// A worker of this node has come to a pass.
    Prefix { worker: WorkerKey, prefix: Prefix },
    /// A worker of this node sends a message to another stage of its pipeline.
    Flow { worker: WorkerKey, bytes: Arc<[u8]> },
    /// A worker has written what it alone has, after this batch of its own; none if it could not.
    Saved {
        worker: WorkerKey,
        sequence: Option<u64>,
        path: PathBuf,
    },
    /// The checkpoint that was being written is written, or could not be.
    CheckpointWritten,
    /// Some time has passed.
    Tick,
}

/// Something to be done.
#[derive(Clone, Debug)]
pub(crate) enum RunExchangeEffect {
    /// Make a link to a participant, and make it again whenever it is lost.
    Connect(Participant),
    /// Give the present connection to a peer up.
    Reconnect(NodeId),
    /// End the link to a peer for good.
    Disconnect(NodeId),
    /// Tell the link to a peer whether the peer is silent or gone.
    Absent { peer: NodeId, absent: bool },
    /// Send a message over the link to a peer. A link that takes nothing more is given up.
    Send { to: NodeId, message: Message },
    /// Hear what a worker sends from now on, or do not hear it any more.
    Hear { worker: WorkerKey, is_heard: bool },
    /// Tell a worker something.
    Tell { worker: WorkerKey, message: ToWorker },
    /// Hand a worker the contents of a frame of this kind.
    Deliver {
        worker: WorkerKey,
        kind: Kind,
        contents: Arc<[u8]>,
    },
    /// Take the socket from a worker: its process ends, and another is started.
    HangUp(WorkerKey),
    /// Tell the run's core what has happened.
    Run(RunEvent),
    /// Tell the run what this node has come to. The bytes that have left over links are not counted yet.
    Settle(Box<Settlement>),
    /// Tell the run what records are made of.
    Report,
    /// Write the ledger to a file, as it is now.
    Write {
        occasion: WriteOccasion,
        path: PathBuf,
        header: Box<Header>,
    },
    /// Tell people something.
    Notice(ExchangeNews),
}

/// The reason for which a ledger is written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOccasion {
    /// A checkpoint in the middle of a run: [`RunExchangeEvent::CheckpointWritten`] follows.
    Checkpoint,
    /// The run has ended and can be continued from here later. Nobody waits for this.
    Last,
    /// No model could be saved: [`RunEvent::Kept`] follows.
    Kept,
}

/// What people are told of an exchange.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExchangeNews {
    /// A node joins the run.
    Joined(String),
    /// A snapshot is being given to a peer.
    Giving(NodeId),
    /// A merged range of so many batches was applied.
    RangeApplied { origin: OriginId, batches: u64 },
    /// A batch that was kept for others is damaged.
    Spoilt,
    /// One bit of this weight had flipped in the ledger, and is corrected.
    Mended(usize),
    /// The ledger is damaged.
    Damaged(AuditError),
    /// A peer's ledger has taken the damaged one's place.
    Healed,
    /// No checkpoint is written, because the ledger is damaged.
    CheckpointSkipped,
    /// What a worker had saved does not fit the ledger.
    StateDropped(PathBuf),
    /// A peer said what no honest member says.
    Quarantined { peer: NodeId, reason: Breach },
    /// A worker sent an invalid batch.
    BatchRejected(String),
    /// A worker addressed a stage that its pipeline does not have.
    FlowRejected,
}
