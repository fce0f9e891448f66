//! Events, effects and orders of the runs on a node: the messages between the runs' core, its actor and the exchange.

use std::collections::BTreeSet;
use std::path::PathBuf;

use protocol::ids::{NodeId, RunId};
use protocol::job::Job;
use protocol::job::data::DataInfo;
use protocol::reasons::Excluded;
use protocol::stats::measured::NodeUsage;
use protocol::weights::digest::Digest;
use protocol::wire::attach::FromWorker;
use protocol::wire::control::{ControlMessage, FoundCheckpoint, NodeInfo, Offer, Phase, Reply, Request};
use protocol::wire::run_beat::RunBeat;
use protocol::wire::run_plan::{Participant, RunPlan};

use crate::ledger::AuditError;

/// Key of an attached worker, unique on its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WorkerKey(pub(crate) u64);

/// Key of a client's request that is still to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

impl Ticket {
    /// The ticket of a run that no client asked for; its answer is dropped.
    pub(crate) const NOBODY: Self = Self(0);
}

/// Change in the liveness of a cluster member, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemberChange {
    /// The member was unknown or silent, and is alive now.
    Alive(NodeInfo),
    /// The member has fallen silent: its beats (periodic state messages) no longer reach this node.
    Silent(NodeId),
    /// The process of the member has ended, by this node's own evidence.
    Dead(NodeId),
    /// The member has left the cluster, or was forgotten after a long silence.
    Left(NodeId),
    /// The member is dead or was silent for long, and another process with its name is alive. Before a run gives such a
    /// member up, the other participants must have done so.
    Succeeded(NodeId),
}

/// Event that the core of a node's runs handles.
#[derive(Clone, Debug)]
pub(crate) enum RunEvent {
    /// A client's request about runs. If it asks for a new run, `run` is the id of that run, drawn in advance.
    Request {
        ticket: Ticket,
        run: RunId,
        request: Request,
    },
    /// Another node's control message about runs.
    ControlMessage { from: NodeId, message: ControlMessage },
    /// Another node's beat about its present run and the one before. Beats are numbered, so that late ones are ignored.
    Beat {
        from: NodeId,
        number: u64,
        runs: Vec<RunBeat>,
    },
    /// The liveness of a cluster member has changed.
    Member(MemberChange),
    /// This node is about to end: it leaves its run first.
    Leave,
    /// This node ends now, although it may not have left its run in good order.
    LeaveUnfinished,
    /// A worker process has connected to this node and may be given a run.
    Attached(WorkerKey),
    /// A worker has disconnected.
    Detached(WorkerKey),
    /// A worker has sent a message.
    Worker(WorkerKey, FromWorker),
    /// This node's offer to a run (the data and resources that it would contribute) is worked out, and its first ledger
    /// (replica) is made; or the node has nothing to offer.
    Offered { run: RunId, offer: Result<Offer, Excluded> },
    /// The search for this node's checkpoints of an earlier run is over.
    LookedUp {
        run: RunId,
        found: Option<Box<FoundCheckpoint>>,
    },
    /// The exchange of a run has started, or could not start.
    Opened { run: RunId, opened: Result<(), Excluded> },
    /// A link of a run's exchange to a node came up or went down.
    Linked { run: RunId, node: NodeId, up: bool },
    /// The exchange of batches in a run has made progress.
    Progress(RunId, Progress),
    /// A peer sent the exchange a message that no honest node sends.
    Lied { run: RunId, node: NodeId },
    /// A weight has left the range of the lattice (the grid of values that weights may have): the run has diverged.
    Diverged(RunId, String),
    /// The actor of a run's exchange has failed, which is a bug in Tau.
    ExchangeFailed(RunId, String),
    /// A batch says that the run is to end early; the reason follows in a beat (a node's state message).
    StopSeen(RunId),
    /// The exchange of an ended run reports its final figures.
    Settlement(RunId, Box<Settlement>),
    /// The replica was kept in this checkpoint file, or could not be written.
    Kept(RunId, Result<PathBuf, String>),
    /// Periodic clock tick, at which time limits are checked.
    Tick,
}

/// Progress of a run's exchange, as the run's core needs to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub(crate) struct Progress {
    /// True if workers may begin: links are up or, on a node that came late or resumes, this node has the batches that
    /// the others have.
    pub(crate) ready: bool,
    /// True if this node has no replica of the run yet, and no living or linked node has one to give.
    pub(crate) stranded: bool,
    /// True if all samples of the run are trained.
    pub(crate) complete: bool,
    /// Fingerprint of the set of batches that this node has applied.
    pub(crate) fingerprint: u64,
    /// Number that identifies the freeze order in force; 0 if none is. While the exchange is frozen, this node applies
    /// no batch, so that members can compare their replicas at the end of a run.
    pub(crate) frozen: u64,
    /// Bytes of large transfers, such as snapshots, that came here or that peers have confirmed.
    pub(crate) moved: u64,
    /// True if this node's replica is known to be damaged and is not replaced yet.
    pub(crate) damaged: bool,
    /// Number of samples in the applied batches.
    pub(crate) samples: u64,
    /// True if this node's workers have made their last batches and all living participants have them.
    pub(crate) handed_over: bool,
}

/// Final figures of a run's exchange on this node.
#[derive(Clone, Debug)]
pub(crate) struct Settlement {
    /// Digest recomputed from the weights of this node's replica, or the error if it is not the digest that the batches
    /// imply.
    pub(crate) digest: Result<Digest, AuditError>,
    /// Digest of these weights at their places in the whole model, if they are one pipeline stage. Such digests of all
    /// stages add up to the digest of the whole model.
    pub(crate) whole: Option<Digest>,
    /// Number of samples in the batches that this node's replica holds.
    pub(crate) samples: u64,
    /// Number of samples that were trained more than once.
    pub(crate) repeated: u64,
    /// Seconds from the time when the first worker could train to the last applied batch.
    pub(crate) seconds: f64,
    /// Bytes sent on the data plane; without peers, the bytes that one peer would have been sent.
    pub(crate) bytes_sent: u64,
    /// Number of weights that this node's replica holds.
    pub(crate) weights: u64,
    /// Resources of the machine that this node has used since the run began here.
    pub(crate) usage: NodeUsage,
}

/// Action that the core of a node's runs asks the actor to carry out.
#[derive(Clone, Debug)]
pub(crate) enum RunEffect {
    /// Send this node's beats (periodic state messages) about its runs to all nodes.
    Publish { beats: Vec<RunBeat>, phase: Phase },
    /// Send a control message to one node.
    Send { to: NodeId, message: ControlMessage },
    /// Send a control message to all nodes.
    Broadcast(ControlMessage),
    /// Answer a client's request.
    Reply(Ticket, Reply),
    /// Tell a worker to open the data of a run.
    Prepare {
        worker: WorkerKey,
        run: RunId,
        job: Box<Job>,
    },
    /// Tell a worker to drop its run.
    Dismiss(WorkerKey),
    /// Close a worker's socket: the worker's process ends, and another is started.
    HangUp(WorkerKey),
    /// Work out this node's offer to a run (the data and resources that it would contribute); [`RunEvent::Offered`]
    /// follows.
    Offer {
        run: RunId,
        job: Box<Job>,
        data: DataInfo,
        workers: usize,
    },
    /// Find this node's furthest checkpoint of an earlier run; [`RunEvent::LookedUp`] follows.
    LookUp { run: RunId, resumes: RunId },
    /// Start the run's exchange of batches, from the replica made with this node's offer or from its checkpoint;
    /// [`RunEvent::Opened`] follows.
    Open { run: RunId, plan: Box<RunPlan> },
    /// Pass an order to the run's exchange of batches.
    Exchange(ExchangeOrder),
    /// Stop the run's exchange of batches, and drop replicas and first weights that wait for an exchange to start.
    Close,
    /// Report that this node, which is about to end, has left its run.
    Left,
}

/// Order of a run's core to the run's exchange.
#[derive(Clone, Debug)]
pub(crate) enum ExchangeOrder {
    /// Add a participant that has joined the run.
    Joined(Participant),
    /// Take over a new view of the participants that are live, silent or gone.
    Liveness(Liveness),
    /// Let a worker train in this slot (number in the run): give it the slot's seat.
    Seat { worker: WorkerKey, slot: usize },
    /// Take a worker's place in the run from it, because it has disconnected or is to begin anew.
    Unseat(WorkerKey),
    /// Tell workers to make no further steps and to close their origins (streams of batches). The worker in `stands_by`
    /// keeps its origin open, because it is still to restore weights that it has measured.
    StopWorkers { stands_by: Option<WorkerKey> },
    /// Tell workers to make no further steps, to send what they have learned, and to close their origins (streams of
    /// batches), while the run goes on.
    LeaveWorkers,
    /// Let this node's workers train the samples of these slots (workers' numbers), as if the slots had no workers.
    TakeOver(BTreeSet<usize>),
    /// Tell a worker that stands by to restore the weights that it has measured, and to close its origin (stream of
    /// batches).
    GoBack(WorkerKey),
    /// Tell one worker to evaluate the model at its present weights.
    Evaluate,
    /// Write a checkpoint, from which the run can be resumed.
    Checkpoint,
    /// Keep the ledger (this node's replica) in a checkpoint file; [`RunEvent::Kept`] follows.
    Keep,
    /// Take no further batches, if this node has exactly the batches with this fingerprint. [`RunEvent::Progress`]
    /// confirms it.
    Freeze { number: u64, fingerprint: u64 },
    /// Take batches again, after an order to take none (a freeze).
    Thaw,
    /// Audit the ledger (this node's replica), keep it in a checkpoint, and report the final figures:
    /// [`RunEvent::Settlement`] follows.
    Settle,
    /// Give a worker the seat (place in the run) of one that was lost at the end. The worker gets this node's replica
    /// and trains nothing; its pipeline needs its layers in order to be measured.
    Reseat { worker: WorkerKey, slot: usize },
    /// Tell a worker to report the digest of its weights and, if `save` is given, to save the model. A later order to
    /// save replaces one that is not carried out yet.
    Finish { worker: WorkerKey, save: Option<Saving> },
    /// Give this node's replica to a worker without a place in the run, which measures and saves the model.
    Measure { worker: WorkerKey, save: Saving },
}

impl ExchangeOrder {
    /// Returns the worker that an order introduces to the exchange, so that the worker's handle must be passed with it.
    pub(crate) fn new_worker(&self) -> Option<WorkerKey> {
        match *self {
            Self::Seat { worker, .. } | Self::Reseat { worker, .. } | Self::Measure { worker, .. } => Some(worker),
            _ => None,
        }
    }
}

/// Options for the order to a worker to save the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Saving {
    /// True to save among the machine's temporary files, because the model's own folder takes no file.
    pub(crate) spare: bool,
    /// True to evaluate the model of the whole pipeline before the worker saves its stage. Without pipelines, every
    /// model is evaluated after it is saved.
    pub(crate) measures_pipeline: bool,
}

/// Participants of a run by liveness, as the exchange needs to know them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Liveness {
    /// Participants that the end of the run waits for.
    pub(crate) live: BTreeSet<NodeId>,
    /// Silent participants, whose samples other workers may take.
    pub(crate) silent: BTreeSet<NodeId>,
    /// Participants that will never come back: no batches are kept for them.
    pub(crate) gone: BTreeSet<NodeId>,
}

impl Liveness {
    /// Returns the participants that are not heard, for now or for good.
    pub(crate) fn absent(&self) -> BTreeSet<NodeId> {
        self.silent.union(&self.gone).copied().collect()
    }
}
