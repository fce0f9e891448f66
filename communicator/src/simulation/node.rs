//! A whole simulated node: the state machines of a real node, its workers and its disk.

use std::collections::{BTreeMap, BTreeSet};

use protocol::ids::{NodeId, OriginId, RunId};
use protocol::job::RoundWeighting;
use protocol::job::data::DataInfo;
use protocol::job::model::Shape;
use protocol::job::target::TargetInfo;
use protocol::log::batch::RoundPhase;
use protocol::reasons::RunFailure;
use protocol::weights::digest::Digest;
use protocol::wire::control::{NodeInfo, Reply, RunResult};
use protocol::wire::run_beat::RunBeat;
use protocol::wire::topology::Topology;

use super::stages::StageWorker;
use crate::ledger::Ledger;
use crate::node::roster::Roster;
use crate::run::{RunCore, Ticket, WorkerKey};
use crate::run_exchange::RunExchange;
use crate::timing::Timing;

/// Simulated nodes use the timeouts of real ones.
pub(super) const TIMING: Timing = Timing::DEFAULT;

/// Number of weights of every model in this simulation.
pub(super) const WEIGHTS: usize = 64;

/// A simulated node process with its workers.
pub(super) struct Node {
    pub(super) info: NodeInfo,
    pub(super) alive: bool,
    /// True while the process is frozen, as after SIGSTOP: its events wait.
    pub(super) stopped: bool,
    /// Earliest time, in milliseconds, at which the frozen process goes on.
    pub(super) stopped_until: u64,
    pub(super) core: RunCore,
    pub(super) roster: Roster,
    /// The states of runs that the node's beats (periodic state messages) carry.
    pub(super) beats: Vec<RunBeat>,
    /// The node over which this one joined the cluster; `None` for the first node.
    pub(super) seed: Option<NodeId>,
    pub(super) workers: BTreeMap<WorkerKey, Worker>,
    /// The first value of each weight, as a count (whole steps of 2^-20), that the node's workers draw.
    pub(super) draws: i32,
    /// False if the node's data cannot be opened.
    pub(super) data: bool,
    /// The state of the node's disk.
    pub(super) disk: Disk,
    /// The run that the node has offered to take part in, and the replica of the weights with which that run starts. It
    /// is kept until the run's exchange takes it over.
    pub(super) ledger: Option<(RunId, Ledger)>,
    pub(super) exchange: Option<Open>,
    /// The ledgers (replicas) that the node's disk keeps as checkpoints, by run.
    pub(super) checkpoints: BTreeMap<RunId, Checkpoint>,
    /// The runs whose models are saved on the node's disk.
    pub(super) models: BTreeSet<RunId>,
    /// The node's replies to clients.
    pub(super) replies: BTreeMap<Ticket, Reply>,
    /// The outcomes of the runs that have ended on the node.
    pub(super) ended: BTreeMap<RunId, Result<RunResult, RunFailure>>,
    /// Runs in which the node has had an exchange of batches.
    pub(super) took_part: BTreeSet<RunId>,
}

/// The state of a simulated disk, which decides the outcome of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    Sound,
    Full,
    /// State of a disk: it hangs, so that writes do not return.
    Hung,
}

/// A replica that a disk keeps, with the number of the network's stage that it holds.
pub(super) struct Checkpoint {
    pub(super) ledger: Ledger,
    pub(super) stage: u8,
}

/// A node's exchange of batches in the run in which it takes part.
pub(super) struct Open {
    pub(super) run: RunId,
    pub(super) core: RunExchange,
    /// True if this node's simulated workers also train samples that other workers have taken but cannot deliver, because
    /// they hang or are cut off.
    pub(super) takes_over: bool,
}

impl Open {
    pub(super) fn ledger(&self) -> &Ledger {
        self.core.exchange().ledger()
    }

    pub(super) fn topology(&self) -> Topology<'_> {
        self.core.plan().topology()
    }
}

/// A simulated worker process.
#[derive(Default)]
pub(super) struct Worker {
    /// True if the process hangs: it does nothing, and is killed after a while.
    pub(super) hangs: bool,
    /// The run whose data the worker has opened.
    pub(super) prepared: Option<RunId>,
    /// Pieces, received so far, of the weights with which the worker is to begin, as counts (whole steps of 2^-20).
    pub(super) counts: Vec<i32>,
    /// Pieces, received so far, of the sum of a merged range of batches or of a snapshot: the movements of single
    /// weights, each as the weight's index and a number of steps of 2^-20.
    pub(super) sums: Vec<(u32, i32)>,
    pub(super) training: Option<Training>,
    /// The training loop, if the worker holds a pipeline stage of a network.
    pub(super) stage: Option<StageWorker>,
    /// Number of orders that the worker has got, so that late answers to old orders are ignored.
    pub(super) orders: u64,
}

/// The state of a simulated worker that has a place in a run and trains.
pub(super) struct Training {
    pub(super) origin: OriginId,
    pub(super) sequence: u64,
    pub(super) counts: Vec<i32>,
    pub(super) round: Round,
    /// Number of samples that the worker has trained but not yet counted in a batch.
    pub(super) uncounted: u32,
    /// Number of samples that the worker has trained and counted in its batches.
    pub(super) counted: u32,
    /// True if the worker has reported that it has no samples to train.
    pub(super) starved: bool,
    /// Number of simulation steps for which the worker stays idle.
    pub(super) idle: u32,
    pub(super) ending: Ending,
    pub(super) closed: bool,
    /// True while the worker is throttled: its node has told it to pause.
    pub(super) is_paused: bool,
    /// The weights that the worker last measured and that reached the target, as counts (whole steps of
    /// 2^-20).
    pub(super) on_target: Option<Vec<i32>>,
}

/// A simulated worker's progress through rounds, in which workers wait for each other. It is used only in worlds that
/// train in rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) number: u64,
    pub(super) newest: u64,
    pub(super) waits: bool,
    /// True if the worker has announced its loss for the round, so that its next batch carries its share of what it has
    /// learned.
    pub(super) due: bool,
    /// True from the time when the worker is idle until it has reached two further rounds. Until then it does not know
    /// the newest round, so the simulation does not expect other workers to wait for it.
    pub(super) returns: bool,
    pub(super) since_idle: u32,
}

impl Round {
    fn arrive(&mut self) {
        self.number = self.newest.max(self.number + 1);
        self.waits = true;
        self.since_idle = if self.returns { self.since_idle + 1 } else { 0 };
        self.returns = self.returns && self.since_idle < 2;
    }

    /// Chooses the content of the worker's next batch: the announcement of its loss, if the weighting of the round
    /// depends on losses and the worker has not announced its own, or else its share of what it has learned.
    pub(super) fn next(&mut self, shares: RoundWeighting) -> RoundPhase {
        if std::mem::take(&mut self.due) {
            self.waits = true;
            return RoundPhase::Contributes;
        }
        self.arrive();
        if shares.depends_on_losses() {
            RoundPhase::Announces
        } else {
            RoundPhase::Contributes
        }
    }
}

/// The order about the end of training that a worker last got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Nothing,
    Stop,
    /// Order to take no further step: the worker leaves the run, which goes on.
    Leave,
    /// Order to make no batches until the order to go back to the measured weights comes.
    StandBy,
    GoBack,
}

impl Node {
    pub(super) fn new(id: NodeId, name: String, seed: Option<NodeId>, workers: usize, draws: i32) -> Self {
        let info = NodeInfo {
            id,
            name,
            address: format!("127.0.0.1:{}", 1 + id.0 % 60_000).parse().unwrap(),
            version: "1".into(),
            device: "cpu".into(),
            workers,
            since: 0,
        };
        Self {
            core: RunCore::new(info.clone(), workers, &TIMING.run),
            roster: Roster::new(id, TIMING.membership),
            info,
            alive: true,
            stopped: false,
            stopped_until: 0,
            beats: Vec::new(),
            seed,
            workers: BTreeMap::new(),
            draws,
            data: true,
            disk: Disk::Sound,
            ledger: None,
            exchange: None,
            checkpoints: BTreeMap::new(),
            models: BTreeSet::new(),
            replies: BTreeMap::new(),
            ended: BTreeMap::new(),
            took_part: BTreeSet::new(),
        }
    }

    /// Makes the replica of the first weights that the node's workers draw for a run.
    pub(super) fn first_ledger(&self, run: RunId) -> Ledger {
        Ledger::new(run, vec![self.draws; WEIGHTS])
    }

    /// Returns true if the node is alive and not frozen.
    pub(super) fn runs(&self) -> bool {
        self.alive && !self.stopped
    }

    /// The run that the node is in, if the run has not ended there.
    pub(super) fn run(&self) -> Option<RunId> {
        let status = self.core.status(std::time::Duration::ZERO)?;
        status.outcome.is_none().then_some(status.run)
    }
}

/// The description of the data on every node, with this many training samples.
pub(super) fn data(train: u64) -> DataInfo {
    DataInfo {
        hash: [7; 32],
        input: Shape::Flat(3),
        target: TargetInfo::Classes(2),
        train,
        test: 2,
        validation: 0,
        most_frequent: 1,
        code: None,
    }
}

/// The digest of a replica's weights.
pub(super) fn digest(counts: &[i32]) -> Digest {
    Digest::of_counts(counts)
}
