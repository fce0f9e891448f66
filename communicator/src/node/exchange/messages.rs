//! What the exchange's actor is told, and what it tells.

use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::stats::measured::Moment;
use protocol::stats::{ExchangeFigures, PeerRecord};
use protocol::weights::digest::Digest;
use ractor::DerivedActorRef;
use ractor_cluster::RactorMessage;

use crate::node::link::LinkNotice;
use crate::node::mailbox::notice;
use crate::node::workers::{SeatNotice, WorkerHandle};
use crate::run::{ExchangeOrder, RunEvent};
use crate::run_exchange::RunExchangeArguments;
use crate::timing::Timing;
use crate::transport::{Security, Stream};

/// What the exchange is told.
#[derive(RactorMessage)]
pub(crate) enum ExchangeMessage {
    /// A peer's call for a link was taken.
    Accepted { from: NodeId, stream: Stream },
    /// A link came or went, or something came over it.
    Link(LinkNotice),
    /// One of this node's workers sends something.
    FromSeat(SeatNotice),
    /// What the run's core wants done.
    Order {
        order: ExchangeOrder,
        /// The worker that it names, if the exchange does not have it yet.
        worker: Option<WorkerHandle>,
    },
    /// The checkpoint that was being written is written, or could not be.
    Checkpointed,
    /// Some time has passed.
    Tick,
}

notice!(ExchangeMessage::Link(LinkNotice));
notice!(ExchangeMessage::FromSeat(SeatNotice));

/// What the exchange tells.
pub(crate) enum ExchangeNotice {
    /// Something that the run's core has to know.
    Happened(Box<RunEvent>),
    /// What it has done so far.
    Report(RunId, Box<Report>),
}

/// What an exchange has done so far.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// The digest that the ledger's batches add up to.
    pub(crate) digest: Digest,
    /// The figures of records that the exchange tells as they are.
    pub(crate) figures: ExchangeFigures,
    /// What was exchanged with each peer.
    pub(crate) peers: Vec<PeerRecord>,
    /// The weights of the model.
    pub(crate) weights: u64,
    /// Bytes of batches of this node's workers.
    pub(crate) bytes_encoded: u64,
    /// For how long workers were throttled.
    pub(crate) paused: Duration,
    /// How far the run is.
    pub(crate) moment: Moment,
}

/// What the actor is started with.
pub(crate) struct ExchangeArguments {
    pub(crate) core: RunExchangeArguments,
    /// The node's release.
    pub(crate) version: String,
    /// How to reach peers.
    pub(crate) security: Security,
    /// How often it does what, and how long its links wait.
    pub(crate) timing: Timing,
    /// Whom it serves.
    pub(crate) parent: DerivedActorRef<ExchangeNotice>,
}
