//! What happens to a run on this node, and what is to be done about it.

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

/// The name of an attached worker on its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WorkerKey(pub(crate) u64);

/// A client's question that is still to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

impl Ticket {
    /// Nobody waits for the answer.
    pub(crate) const NOBODY: Self = Self(0);
}

/// How a member of the cluster is seen by this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemberChange {
    /// A member that was not known, or was silent, is alive.
    Alive(NodeInfo),
    /// A member is silent: this node does not hear it directly.
    Silent(NodeId),
    /// A member's process has ended, by this node's own evidence.
    Dead(NodeId),
    /// A member has left the cluster, or is forgotten.
    Left(NodeId),
    /// A member is forgotten because another process has its name, and this node has evidence that the member has ended. A run
    /// asks the other participants before it believes that.
    Succeeded(NodeId),
}

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) enum RunEvent {
    /// A client asks for something that concerns runs. If that is a new run, it has this name, which was drawn for it.
    Request {
        ticket: Ticket,
        run: RunId,
        request: Request,
    },
    /// Another node says something that concerns runs.
    ControlMessage { from: NodeId, message: ControlMessage },
    /// Another node tells of the run that it is in, and of the one before. Its beats are numbered.
    Beat {
        from: NodeId,
        number: u64,
        runs: Vec<RunBeat>,
    },
    /// A member of the cluster came or went.
    Member(MemberChange),
    /// This node is about to end.
    Leave,
    /// This node ends now, whether it has left its run or not.
    LeaveUnfinished,
    /// A worker is attached.
    Attached(WorkerKey),
    /// A worker is gone.
    Detached(WorkerKey),
    /// A worker says something.
    Worker(WorkerKey, FromWorker),
    /// What this node can offer to a run was worked out, and its first ledger is made.
    Offered { run: RunId, offer: Result<Offer, Excluded> },
    /// This node's checkpoints of an earlier run were looked through.
    LookedUp {
        run: RunId,
        found: Option<Box<FoundCheckpoint>>,
    },
    /// The exchange of a run is there, or cannot be.
    Opened { run: RunId, opened: Result<(), Excluded> },
    /// A link of a run's exchange to a node is up, or down.
    Linked { run: RunId, node: NodeId, up: bool },
    /// How far the exchange is.
    Progress(RunId, Progress),
    /// A peer said to the exchange what no honest member says.
    Lied { run: RunId, node: NodeId },
    /// A weight left the range.
    Diverged(RunId, String),
    /// The exchange is not there any more, by a fault of ours.
    ExchangeFailed(RunId, String),
    /// A batch came that says that the run is to end; the reason follows with a beat.
    StopSeen(RunId),
    /// What the exchange ends with.
    Settlement(RunId, Box<Settlement>),
    /// The ledger of a run that nobody could save as a model is kept in this file, or not even that.
    Kept(RunId, Result<PathBuf, String>),
    /// Some time has passed.
    Tick,
}

/// How far an exchange is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub(crate) struct Progress {
    /// Workers may begin: links are up or, for whoever came late, it has what the others have.
    pub(crate) ready: bool,
    /// This node has nothing, and nobody is linked who has anything to give it.
    pub(crate) stranded: bool,
    /// All samples are trained.
    pub(crate) complete: bool,
    /// The fingerprint of the batches applied.
    pub(crate) fingerprint: u64,
    /// The number of the order since which it takes no further batches; 0 if it does.
    pub(crate) frozen: u64,
    /// Bytes of large parcels that came, or are known to have come to others.
    pub(crate) moved: u64,
    /// Its ledger is known to be damaged, and not replaced yet.
    pub(crate) damaged: bool,
    /// Samples in applied batches.
    pub(crate) samples: u64,
    /// This node's workers have made their last batches, and all living participants have them.
    pub(crate) handed_over: bool,
}

/// What an exchange ends with.
#[derive(Clone, Debug)]
pub(crate) struct Settlement {
    /// The digest recomputed from the ledger.
    pub(crate) digest: Result<Digest, AuditError>,
    /// What these weights add to the whole model's digest, where they are a stage.
    pub(crate) whole: Option<Digest>,
    /// The samples in its batches.
    pub(crate) samples: u64,
    /// How many of them were trained more than once.
    pub(crate) repeated: u64,
    /// First step to last batch applied.
    pub(crate) seconds: f64,
    /// Bytes sent on the data plane; with no peers, the bytes that one would have been sent.
    pub(crate) bytes_sent: u64,
    /// The weights of the model.
    pub(crate) weights: u64,
    /// What the node took of its machine.
    pub(crate) usage: NodeUsage,
}

/// Something to be done.
#[derive(Clone, Debug)]
pub(crate) enum RunEffect {
    /// Tell everybody how far this node's runs are.
    Publish { beats: Vec<RunBeat>, phase: Phase },
    /// Say something to one node.
    Send { to: NodeId, message: ControlMessage },
    /// Say something to all nodes.
    Broadcast(ControlMessage),
    /// Answer a client.
    Reply(Ticket, Reply),
    /// Let a worker open the data of a run.
    Prepare {
        worker: WorkerKey,
        run: RunId,
        job: Box<Job>,
    },
    /// Let a worker drop its run.
    Dismiss(WorkerKey),
    /// Take the socket from a worker: its process ends, and another is started.
    HangUp(WorkerKey),
    /// Work out what this node can offer: [`RunEvent::Offered`] follows.
    Offer {
        run: RunId,
        job: Box<Job>,
        data: DataInfo,
        workers: usize,
    },
    /// Look for this node's furthest checkpoint of an earlier run: [`RunEvent::LookedUp`] follows.
    LookUp { run: RunId, resumes: RunId },
    /// Start the exchange, from the ledger that was made with the offer or from this node's checkpoint:
    /// [`RunEvent::Opened`] follows.
    Open { run: RunId, plan: Box<RunPlan> },
    /// Something for the exchange.
    Exchange(ExchangeOrder),
    /// End the exchange, and forget ledgers.
    Close,
    /// This node, which is about to end, has left its run.
    Left,
}

/// What the exchange is told by the run.
#[derive(Clone, Debug)]
pub(crate) enum ExchangeOrder {
    /// A node takes part.
    Joined(Participant),
    /// How things stand with the participants.
    Liveness(Liveness),
    /// A worker takes a seat.
    Seat { worker: WorkerKey, slot: usize },
    /// A worker is gone.
    Unseat(WorkerKey),
    /// Workers take no further step, and close their origins; but this one leaves its own open.
    StopWorkers { stands_by: Option<WorkerKey> },
    /// Workers take no further step, let out what they have learned, and close their origins, while the run goes on.
    LeaveWorkers,
    /// This node's workers may train the samples of these slots, as if they had no workers.
    TakeOver(BTreeSet<usize>),
    /// A worker that stands by goes back to the weights that it has measured, and closes its origin.
    GoBack(WorkerKey),
    /// One worker measures the weights.
    Evaluate,
    /// Write a checkpoint.
    Checkpoint,
    /// Keep the ledger in a file: [`RunEvent::Kept`] follows.
    Keep,
    /// Take no further batches, if these are the ones that are there. [`RunEvent::Progress`] tells.
    Freeze { number: u64, fingerprint: u64 },
    /// Take batches again.
    Thaw,
    /// Audit the ledger, keep it in a checkpoint, and say what it comes to: [`RunEvent::Settlement`] follows.
    Settle,
    /// A worker takes a seat that was lost at the end. It is given the ledger, trains nothing, and has its layers ready for
    /// the measurement of its pipeline.
    Reseat { worker: WorkerKey, slot: usize },
    /// This worker tells the digest of what it has, and saves the model if it is to. A later order to save replaces one that
    /// is not carried out yet.
    Finish { worker: WorkerKey, save: Option<Saving> },
    /// This worker, which has no seat, is given the ledger, and measures and saves it.
    Measure { worker: WorkerKey, save: Saving },
}

impl ExchangeOrder {
    /// The worker that the exchange does not have yet, and is to be given.
    pub(crate) fn new_worker(&self) -> Option<WorkerKey> {
        match *self {
            Self::Seat { worker, .. } | Self::Reseat { worker, .. } | Self::Measure { worker, .. } => Some(worker),
            _ => None,
        }
    }
}

/// How a worker saves the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Saving {
    /// Saves among the machine's temporary files, because the model's own place takes no file.
    pub(crate) spare: bool,
    /// Measures the whole pipeline first. Without a pipeline, every model is measured after it is saved.
    pub(crate) measures_pipeline: bool,
}

/// How things stand with the participants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Liveness {
    /// Those that are waited for.
    pub(crate) live: BTreeSet<NodeId>,
    /// Those whose samples others may take.
    pub(crate) silent: BTreeSet<NodeId>,
    /// Those that will never come back: nothing is kept for them.
    pub(crate) gone: BTreeSet<NodeId>,
}

impl Liveness {
    /// Those that nobody hears, for now or for good.
    pub(crate) fn absent(&self) -> BTreeSet<NodeId> {
        self.silent.union(&self.gone).copied().collect()
    }
}
