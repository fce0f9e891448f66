//! Messages to and from the exchange's actor, and its arguments.

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

/// Message to the exchange's actor.
#[derive(RactorMessage)]
pub(crate) enum ExchangeMessage {
    /// A peer has called for a link, and the call was accepted.
    Accepted { from: NodeId, stream: Stream },
    /// A link has come up or gone down, or has received a message.
    Link(LinkNotice),
    /// One of this node's workers that has a seat has sent something.
    FromSeat(SeatNotice),
    /// Order of the run's core for the exchange to carry out.
    Order {
        order: ExchangeOrder,
        /// Handle of the worker that the order names, if the exchange does not have it yet.
        worker: Option<WorkerHandle>,
    },
    /// The checkpoint that was being written is written, or could not be.
    Checkpointed,
    /// Periodic clock tick.
    Tick,
}

notice!(ExchangeMessage::Link(LinkNotice));
notice!(ExchangeMessage::FromSeat(SeatNotice));

/// Notice of the exchange's actor to its parent.
pub(crate) enum ExchangeNotice {
    /// Event for the run's core.
    Happened(Box<RunEvent>),
    /// Figures of the exchange of this run so far.
    Report(RunId, Box<Report>),
}

/// Figures of a run's exchange so far, from which records are made.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// Digest that the ledger's batches add up to.
    pub(crate) digest: Digest,
    /// Figures that records carry unchanged.
    pub(crate) figures: ExchangeFigures,
    /// Traffic with each peer.
    pub(crate) peers: Vec<PeerRecord>,
    /// Number of weights that this node's ledger holds.
    pub(crate) weights: u64,
    /// Bytes of all batches that this node's workers have made.
    pub(crate) bytes_encoded: u64,
    /// Total time for which workers were throttled.
    pub(crate) paused: Duration,
    /// Samples and seconds of the run so far.
    pub(crate) moment: Moment,
}

/// Arguments with which the exchange's actor is started.
pub(crate) struct ExchangeArguments {
    pub(crate) core: RunExchangeArguments,
    /// Tau release of this node.
    pub(crate) version: String,
    /// Protection of the connections to peers.
    pub(crate) security: Security,
    /// Intervals and time limits of the node.
    pub(crate) timing: Timing,
    /// Actor that gets the notices of the exchange.
    pub(crate) parent: DerivedActorRef<ExchangeNotice>,
}
