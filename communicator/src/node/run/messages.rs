//! What the run's actor is told.

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

/// What the run's actor is told.
#[derive(RactorMessage)]
pub(crate) enum RunMessage {
    /// The way to other nodes: the first message.
    Membership(ActorRef<MembershipMessage>),
    /// A client asks for something that concerns runs.
    Request {
        request: Request,
        /// Told when that has begun.
        reply: RpcReplyPort<Payload<Reply>>,
    },
    /// Leave the run, because this node is about to end; answered when that is done.
    Leave(RpcReplyPort<()>),
    /// Leave this node's run at once. Told when that has begun to be told to the others.
    LeaveUnfinished(RpcReplyPort<()>),
    /// How far is the run?
    Status(RpcReplyPort<Payload<Reply>>),
    /// What is heard of this node's workers.
    Workers(WorkersNotice),
    /// What is heard of the exchange.
    Exchange(ExchangeNotice),
    /// Something happened that the core alone has to know.
    Event(RunEvent),
    /// What this node can offer was worked out.
    Offered {
        run: RunId,
        /// What, with the ledger that it would begin with.
        offered: Result<(Offer, Box<Ledger>), Excluded>,
    },
    /// The exchange of a run is there, or cannot be.
    Opened {
        run: RunId,
        opened: Result<ActorRef<ExchangeMessage>, Excluded>,
    },
    /// Would a call for a link be taken?
    Expects {
        run: RunId,
        /// Who calls.
        from: NodeId,
        reply: RpcReplyPort<bool>,
    },
    /// A peer called for a link, and was told that it stands.
    Link {
        run: RunId,
        /// Who calls.
        from: NodeId,
        stream: Stream,
    },
    /// Where is the model of a run?
    Model {
        run: RunId,
        /// Where it is, if it is here.
        reply: RpcReplyPort<Option<PathBuf>>,
    },
    /// Some time has passed.
    Tick,
}

notice!(RunMessage::Event(RunEvent));
notice!(RunMessage::Workers(WorkersNotice));
notice!(RunMessage::Exchange(ExchangeNotice));
