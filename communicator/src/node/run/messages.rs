//! Messages to the run's actor.

use std::path::PathBuf;

use protocol::ids::{NodeId, RunId};
use protocol::reasons::Excluded;
use protocol::wire::control::{Offer, Reply, Request};
use ractor::{ActorRef, RpcReplyPort};
use ractor_cluster::RactorMessage;

use crate::control::Payload;
use crate::ledger::Ledger;
use crate::node::exchange::{ExchangeMessage, ExchangeNotice};
use crate::node::mailbox::notice;
use crate::node::membership::MembershipMessage;
use crate::node::workers::WorkersNotice;
use crate::run::RunEvent;
use crate::transport::Stream;

/// Message to the actor that leads this node through its runs.
#[derive(RactorMessage)]
pub(crate) enum RunMessage {
    /// The actor that knows the cluster's members and sends messages to them. The run's actor gets this message before
    /// all others.
    Membership(ActorRef<MembershipMessage>),
    /// A client's request about runs.
    Request {
        request: Request,
        /// Port for the reply, which is sent when the request has begun to be carried out.
        reply: RpcReplyPort<Payload<Reply>>,
    },
    /// Leave the run, because this node is about to end. The reply is sent when that is done.
    Leave(RpcReplyPort<()>),
    /// Leave this node's run at once, with its work unfinished. The reply is sent when the others are being told.
    LeaveUnfinished(RpcReplyPort<()>),
    /// Report the status of the run to a client.
    Status(RpcReplyPort<Payload<Reply>>),
    /// Notice of the worker supervisor about this node's workers.
    Workers(WorkersNotice),
    /// Notice of the actor that exchanges the run's batches with other nodes.
    Exchange(ExchangeNotice),
    /// Pass an event on to the run's core, which alone handles it.
    Event(RunEvent),
    /// This node's offer to a run (its data, workers and memory) was worked out.
    Offered {
        run: RunId,
        /// The offer and the ledger (exact replica of the weights) with which the run would begin, or the reason
        /// against an offer.
        offered: Result<(Offer, Box<Ledger>), Excluded>,
    },
    /// The exchange of a run has started, or could not start.
    Opened {
        run: RunId,
        opened: Result<ActorRef<ExchangeMessage>, Excluded>,
    },
    /// Answer true if this node would accept a link for which another node asks.
    Expects {
        run: RunId,
        /// Node that asks for the link.
        from: NodeId,
        reply: RpcReplyPort<bool>,
    },
    /// A peer has opened a connection for its link to this node, and was told that the link is accepted.
    Link {
        run: RunId,
        /// Node that has opened the connection.
        from: NodeId,
        stream: Stream,
    },
    /// Find the file with a run's trained model.
    Model {
        run: RunId,
        /// Port for the path of a run's model file; `None` if this node does not have the model.
        reply: RpcReplyPort<Option<PathBuf>>,
    },
    /// Periodic clock tick, at which the run's time limits are checked and records of statistics are made.
    Tick,
}

notice!(RunMessage::Event(RunEvent));
notice!(RunMessage::Workers(WorkersNotice));
notice!(RunMessage::Exchange(ExchangeNotice));
