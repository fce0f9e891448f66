//! What the run's actor is told.

use std::path::PathBuf;
use std::sync::Arc;

use protocol::attach::FromWorker;
use protocol::control::{Found, Offer, Reply, RunBeat};
use protocol::ids::{NodeId, RunId};
use protocol::job::Job;
use ractor::{ActorRef, RpcReplyPort};
use ractor_cluster::RactorMessage;
use tokio::sync::OwnedSemaphorePermit;

use crate::control::Payload;
use crate::node::exchange::Progress;
use crate::node::membership::MembershipMessage;
use crate::node::roster::Change;
use crate::node::workers::{WorkerHandle, WorkerKey};
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
    /// Which checkpoint of an earlier run is here?
    Find {
        /// The run that is going to be.
        run: RunId,
        /// Who wants to know.
        coordinator: NodeId,
        /// The earlier run.
        resumes: RunId,
    },
    /// A node has told which checkpoint it has.
    Found {
        /// For which run.
        run: RunId,
        /// Which node.
        from: NodeId,
        /// What it has.
        found: Option<Box<Found>>,
    },
    /// Write a checkpoint, here and everywhere.
    CheckpointAll(RpcReplyPort<Payload<Reply>>),
    /// Write a checkpoint.
    Checkpoint(RunId),
    /// End the run early.
    Stop(RpcReplyPort<Payload<Reply>>),
    /// How far is the run?
    Status(RpcReplyPort<Payload<Reply>>),
    /// Get ready for a run.
    Prepare {
        /// Which.
        run: RunId,
        /// Who wants to know.
        coordinator: NodeId,
        /// What is to be trained.
        job: Box<Job>,
    },
    /// A node has answered.
    Answer {
        /// In which run.
        run: RunId,
        /// Which node.
        from: NodeId,
        /// What it can offer.
        answer: Result<Offer, String>,
    },
    /// A run is called off.
    Abort {
        /// Which.
        run: RunId,
        /// Why.
        reason: String,
    },
    /// How far a peer is in its run.
    PeerRun(NodeId, Box<RunBeat>),
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
    /// How far the exchange is.
    Progress(RunId, Progress),
    /// A participant can never have everything: it is not waited for any more.
    GiveUp {
        /// In which run.
        run: RunId,
        /// Which.
        node: NodeId,
    },
    /// Some worker has seen the run's stop.
    StopSeen(RunId),
    /// A weight left the range.
    Diverged(RunId, String),
    /// Links were waited for long enough.
    LinksWaited(RunId),
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
