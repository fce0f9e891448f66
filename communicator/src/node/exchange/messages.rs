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

/// Message to the actor that exchanges a run's batches with other nodes.
#[derive(RactorMessage)]
pub(crate) enum ExchangeMessage {
    /// A peer has opened a connection for its link to this node, and was told that the link is accepted.
    Accepted { from: NodeId, stream: Stream },
    /// A link to a peer has come up or gone down, or has received a message.
    Link(LinkNotice),
    /// A worker of this node that takes part in the run has sent a message.
    FromSeat(SeatNotice),
    /// The run's core gives the exchange an order to carry out.
    Order {
        order: ExchangeOrder,
        /// Handle of the worker that the order names, if the exchange does not have it yet.
        worker: Option<WorkerHandle>,
    },
    /// The node's checkpoint has been written, or could not be.
    Checkpointed,
    /// Periodic tick of the actor's clock, by which the exchange measures time.
    Tick,
}

notice!(ExchangeMessage::Link(LinkNotice));
notice!(ExchangeMessage::FromSeat(SeatNotice));

/// Notice of the exchange's actor to its parent, the run's actor.
pub(crate) enum ExchangeNotice {
    /// The exchange reports an event to the run's core.
    Happened(Box<RunEvent>),
    /// The exchange reports its figures of this run so far.
    Report(RunId, Box<Report>),
}

/// Figures of a run's exchange so far, from which the node's records of statistics are made.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// Digest (a checksum of weights) that the batches in the node's ledger add up to.
    pub(crate) digest: Digest,
    /// Figures of the exchange that the node's records of statistics carry unchanged.
    pub(crate) figures: ExchangeFigures,
    /// Bytes and batches exchanged with each peer in this run.
    pub(crate) peers: Vec<PeerRecord>,
    /// Number of weights that this node's ledger (its exact replica) holds.
    pub(crate) weights: u64,
    /// Bytes of all batches that this node's workers have made.
    pub(crate) bytes_encoded: u64,
    /// Total time for which this node's workers were throttled because enough data already waited to be sent.
    pub(crate) paused: Duration,
    /// Progress of the run so far: samples and seconds.
    pub(crate) moment: Moment,
}

/// Arguments with which the actor that exchanges a run's batches is started.
pub(crate) struct ExchangeArguments {
    pub(crate) core: RunExchangeArguments,
    /// Tau release of this node.
    pub(crate) version: String,
    /// Protection of the connections to peers: TLS, or plain text within one machine.
    pub(crate) security: Security,
    /// Intervals and time limits of the node.
    pub(crate) timing: Timing,
    /// Actor that gets the notices of the exchange: the run's actor.
    pub(crate) parent: DerivedActorRef<ExchangeNotice>,
}
