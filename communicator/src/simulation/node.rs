//! A whole node of the simulation: the cores of a real one, its workers and its disk.

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

/// Simulated nodes have the times of real ones.
pub(super) const TIMING: Timing = Timing::DEFAULT;

/// Weights of every model here.
pub(super) const WEIGHTS: usize = 64;

/// A process with its workers.
pub(super) struct Node {
    pub(super) info: NodeInfo,
    pub(super) alive: bool,
    /// It stands still, as after SIGSTOP: what comes to it waits.
    pub(super) stopped: bool,
    /// At least until then, in milliseconds.
    pub(super) stopped_until: u64,
    pub(super) core: RunCore,
    pub(super) roster: Roster,
    /// What its beats say of runs.
    pub(super) beats: Vec<RunBeat>,
    /// The node that it joined at.
    pub(super) seed: Option<NodeId>,
    pub(super) workers: BTreeMap<WorkerKey, Worker>,
    /// Whether its data can be opened, and its disk written.
    pub(super) data: bool,
    pub(super) disk: Disk,
    /// The ledger of a run that has not begun.
    pub(super) ledger: Option<(RunId, Ledger)>,
    pub(super) exchange: Option<Open>,
    /// What its disk holds: a ledger by run, and the runs whose models are saved.
    pub(super) checkpoints: BTreeMap<RunId, Checkpoint>,
    pub(super) models: BTreeSet<RunId>,
    /// Answers to clients.
    pub(super) replies: BTreeMap<Ticket, Reply>,
    /// How its runs ended.
    pub(super) ended: BTreeMap<RunId, Result<RunResult, RunFailure>>,
    /// Runs that it had an exchange for.
    pub(super) took_part: BTreeSet<RunId>,
}

/// What a disk does with what is written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    Sound,
    Full,
    /// It does not answer.
    Hung,
}

/// A ledger on a disk, and the stage of a network that it is of.
pub(super) struct Checkpoint {
    pub(super) ledger: Ledger,
    pub(super) stage: u8,
}

/// The exchange of a run.
pub(super) struct Open {
    pub(super) run: RunId,
    pub(super) core: RunExchange,
    /// Workers train samples that others hold back.
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

/// A worker process.
#[derive(Default)]
pub(super) struct Worker {
    /// It hangs: it does nothing more, and is killed in a while.
    pub(super) hangs: bool,
    /// The run that it has opened the data of.
    pub(super) prepared: Option<RunId>,
    /// Counts to begin from, and moved weights, of which it has been given some pieces.
    pub(super) counts: Vec<i32>,
    pub(super) sums: Vec<(u32, i32)>,
    pub(super) training: Option<Training>,
    /// Its loop, where it holds a stage of a network.
    pub(super) stage: Option<StageWorker>,
    /// Counts the orders that it was given, so that late answers to old orders do not count.
    pub(super) orders: u64,
}

/// A worker at work.
pub(super) struct Training {
    pub(super) origin: OriginId,
    pub(super) sequence: u64,
    pub(super) counts: Vec<i32>,
    pub(super) round: Round,
    /// Samples that it has trained and no batch counts yet, and those that its batches have counted.
    pub(super) uncounted: u32,
    pub(super) counted: u32,
    /// It has told that it has nothing to train.
    pub(super) starved: bool,
    /// Steps for which it has nothing to train.
    pub(super) idle: u32,
    pub(super) ending: Ending,
    pub(super) closed: bool,
    /// It is throttled.
    pub(super) is_paused: bool,
    /// The counts that it measured last and found good enough.
    pub(super) on_target: Option<Vec<i32>>,
}

/// How far a worker is in rounds, where there are any.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) number: u64,
    pub(super) newest: u64,
    pub(super) waits: bool,
    /// It has told its loss, and its share is due.
    pub(super) due: bool,
    /// It was idle, and has not come to two rounds since: it does not know the newest.
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

    /// What a worker's next batch does, where such shares are let out.
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

/// What a worker was told of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Nothing,
    Stop,
    /// It takes no further step, and leaves a run that goes on.
    Leave,
    /// It makes no batches until it is told to go back to what it measured.
    StandBy,
    GoBack,
}

impl Node {
    pub(super) fn new(id: NodeId, name: String, seed: Option<NodeId>, workers: usize) -> Self {
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

    /// Whether it does anything now.
    pub(super) fn runs(&self) -> bool {
        self.alive && !self.stopped
    }

    /// The run that it is in, if that is not over.
    pub(super) fn run(&self) -> Option<RunId> {
        let status = self.core.status(std::time::Duration::ZERO)?;
        status.outcome.is_none().then_some(status.run)
    }
}

/// What everybody's data is, with so many samples.
pub(super) fn data(train: u64) -> DataInfo {
    DataInfo {
        hash: [7; 32],
        input: Shape::Flat(3),
        target: TargetInfo::Classes(2),
        train,
        test: 2,
        validation: 0,
        most_frequent: 1,
    }
}

/// The digest of a replica's counts.
pub(super) fn digest(counts: &[i32]) -> Digest {
    Digest::of_counts(counts)
}
