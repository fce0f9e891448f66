//! What the run's actor is told.

use std::path::PathBuf;
use std::sync::Arc;

use protocol::attach::FromWorker;
use protocol::control::{Offer, Reply};
use protocol::ids::{NodeId, RunId};
use protocol::job::Job;
use protocol::run_beat::RunBeat;
use ractor::{ActorRef, RpcReplyPort};
use ractor_cluster::RactorMessage;
use tokio::sync::OwnedSemaphorePermit;

use crate::control::Payload;
use crate::ledger::Ledger;
use crate::node::exchange::{ExchangeMessage, Report};
use crate::node::membership::MembershipMessage;
use crate::node::roster::Change;
use crate::node::workers::WorkerHandle;
use crate::run::{RunEvent, RunWord, WorkerKey};
use crate::transport::Stream;

/// What the run's actor is told.
#[derive(RactorMessage)]
pub(crate) enum RunMessage {
    /// The way to other nodes: the first message.
    Membership(ActorRef<MembershipMessage>),
    /// Start a run.
    Start {
        /// What is to be trained.
        job: Box<Job>,
        /// Begin without those that cannot take part.
        allow_partial: bool,
        /// Told when it has begun.
        reply: RpcReplyPort<Payload<Reply>>,
    },
    /// Go on with an earlier run.
    Resume {
        /// Which.
        run: RunId,
        /// Begin without those that cannot take part.
        allow_partial: bool,
        /// Told when it has begun.
        reply: RpcReplyPort<Payload<Reply>>,
    },
    /// Write a checkpoint, here and everywhere.
    CheckpointAll(RpcReplyPort<Payload<Reply>>),
    /// End the run early.
    Stop(RpcReplyPort<Payload<Reply>>),
    /// How far is the run?
    Status(RpcReplyPort<Payload<Reply>>),
    /// Another node says something of a run.
    Word {
        /// Which node.
        from: NodeId,
        /// What.
        word: RunWord,
    },
    /// Another node tells how far its runs are.
    Beat {
        /// Which node.
        from: NodeId,
        /// Its number.
        number: u64,
        /// Its run, and the one before.
        runs: Vec<RunBeat>,
    },
    /// Somebody came or went.
    Member(Change),
    /// A worker is there.
    WorkerAttached(WorkerHandle),
    /// A worker is gone.
    WorkerGone(WorkerKey),
    /// A worker says something.
    FromWorker {
        /// Which.
        key: WorkerKey,
        /// What.
        word: Box<FromWorker>,
    },
    /// A worker made a batch.
    WorkerBatch {
        /// Which.
        key: WorkerKey,
        /// The batch.
        bytes: Arc<[u8]>,
        /// Room for the next one, when this is done.
        permit: Option<OwnedSemaphorePermit>,
    },
    /// Something happened that the core alone has to know.
    Event(RunEvent),
    /// What this node can offer was worked out.
    Offered {
        /// To which run.
        run: RunId,
        /// What, with the ledger that it would begin with.
        offered: Result<(Offer, Box<Ledger>), String>,
    },
    /// The exchange of a run is there, or cannot be.
    Opened {
        /// Of which run.
        run: RunId,
        /// The exchange.
        opened: Result<ActorRef<ExchangeMessage>, String>,
    },
    /// What the exchange has done so far.
    Report(RunId, Box<Report>),
    /// Would a call for a link be taken?
    Expects {
        /// In which run.
        run: RunId,
        /// Who calls.
        from: NodeId,
        /// The answer.
        reply: RpcReplyPort<bool>,
    },
    /// A peer called for a link, and was told that it stands.
    Link {
        /// In which run.
        run: RunId,
        /// Who calls.
        from: NodeId,
        /// The connection.
        stream: Stream,
    },
    /// Where is the model of a run?
    Model {
        /// Which.
        run: RunId,
        /// Where it is, if it is here.
        reply: RpcReplyPort<Option<PathBuf>>,
    },
    /// Some time has passed.
    Tick,
}
