//! Data of a run while its exchange runs: the seats of workers, and the progress of the exchange.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::ids::NodeId;
use protocol::job::data::DataInfo;
use protocol::reasons::Excluded;
use protocol::stats::WorkerStats;
use protocol::wire::run_plan::RunPlan;

use super::seat::Seat;
use crate::planted::{Bug, planted};
use crate::run::event::{Progress, WorkerKey};
use crate::run::stalling::Stall;
use crate::timing::RunLimits;

/// Data of a run from its beginning to its end on this node: places of workers, and progress of its exchange of
/// batches.
pub(crate) struct Exchanging {
    pub(crate) plan: RunPlan,
    pub(crate) seats: BTreeMap<usize, Seat>,
    /// Workers that were asked to open the run's data and have not answered; `ready` and `refused` hold those that
    /// have.
    pub(crate) asked: BTreeSet<WorkerKey>,
    pub(crate) ready: BTreeSet<WorkerKey>,
    pub(crate) refused: BTreeSet<WorkerKey>,
    /// The worker without a place in the run that was given this node's replica in order to save it.
    pub(crate) measures: Option<WorkerKey>,
    pub(crate) progress: Progress,
    pub(crate) opened: Duration,
    /// Time at which workers were first given places in the run. By then this node had the batches that the others had.
    pub(crate) seated: Option<Duration>,
    pub(crate) checkpointed: Duration,
    /// True if this node's replica was kept in a file because no pipeline is complete without the nodes that have left.
    pub(crate) kept_incomplete: bool,
    /// For each participant that is lost now, the time at which it was given up or left: its replacement is waited for
    /// until some time after that.
    pub(crate) lost_since: BTreeMap<NodeId, Duration>,
    pub(crate) evaluate_at: u64,
    /// True if workers were told to make no further steps.
    pub(crate) stopped: bool,
    /// The worker that has measured weights to be kept. It stands by until all other workers have made their last
    /// batches, and then restores these weights.
    pub(crate) stands_by: Option<WorkerKey>,
    /// True if the worker in `stands_by` was told to restore the weights that it has measured; it is told once.
    pub(crate) goes_back: bool,
    /// Time since which no node has been able to give this node a replica, of which it has none.
    pub(crate) stranded: Option<Duration>,
    /// Time at which a large transfer, such as a snapshot, last made progress.
    pub(crate) moved: Option<Duration>,
    /// Detector of a run that makes no progress, with the remedies tried.
    pub(crate) stall: Stall,
}

impl Exchanging {
    pub(crate) fn new(plan: RunPlan, me: NodeId, ready: BTreeSet<WorkerKey>, now: Duration) -> Self {
        Self {
            seats: plan
                .topology()
                .slots_of(me)
                .map(|slot| (slot, Seat::default()))
                .collect(),
            plan,
            asked: BTreeSet::new(),
            ready,
            refused: BTreeSet::new(),
            measures: None,
            progress: Progress::default(),
            opened: now,
            seated: None,
            checkpointed: now,
            kept_incomplete: false,
            lost_since: BTreeMap::new(),
            evaluate_at: 0,
            stopped: false,
            stands_by: None,
            goes_back: false,
            stranded: None,
            moved: None,
            stall: Stall::default(),
        }
    }

    /// Returns true if this worker is to be asked to open the run's data, and marks it as asked. As many workers are
    /// asked as seats are empty.
    pub(crate) fn ask_if_wanted(&mut self, worker: WorkerKey) -> bool {
        let known = [&self.asked, &self.ready, &self.refused]
            .iter()
            .any(|set| set.contains(&worker));
        let vacant = self.seats.values().filter(|seat| seat.worker.is_none()).count();
        let known = known || self.measures == Some(worker);
        let wanted = !known && self.seat_of(worker).is_none() && vacant > self.asked.len() + self.ready.len();
        wanted && self.asked.insert(worker)
    }

    pub(crate) fn seat_of(&mut self, worker: WorkerKey) -> Option<&mut Seat> {
        self.seats.values_mut().find(|seat| seat.worker == Some(worker))
    }

    /// Records a worker's answer to the order to open the data. Returns false if the worker was asked and cannot take
    /// part.
    pub(crate) fn prepared(&mut self, worker: WorkerKey, data: Result<DataInfo, Excluded>) -> bool {
        if !self.asked.remove(&worker) {
            return true;
        }
        match data {
            Ok(data) if data == self.plan.data => {
                self.ready.insert(worker);
                return true;
            }
            Ok(_) => tracing::error!(
                event = "worker_data_changed",
                "the data has changed since the run began; the worker that opened the data is not used"
            ),
            Err(reason) => tracing::error!(
                event = "worker_refused",
                %reason,
                "a restarted worker cannot take part in the run"
            ),
        }
        self.refused.insert(worker);
        false
    }

    /// Removes a worker that has disconnected. Returns true if the worker had a place in the run.
    pub(crate) fn detached(&mut self, worker: WorkerKey) -> bool {
        for set in [&mut self.asked, &mut self.ready, &mut self.refused] {
            set.remove(&worker);
        }
        self.measures.take_if(|measures| *measures == worker);
        self.stands_by.take_if(|stands_by| *stands_by == worker);
        let seat = self.seat_of(worker);
        let seated = seat.is_some();
        seat.into_iter().for_each(Seat::leave);
        seated
    }

    /// Returns true if a place in the run has lost its worker before the end and has no new one yet.
    pub(crate) fn is_unmanned(&self) -> bool {
        self.seats.values().any(|seat| seat.worker.is_none() && seat.lost)
    }

    /// Records that a worker has measured weights with which the run may end (the best, or weights that reach the
    /// target), so that it restores them at the end. If workers were told to stop already, it is too late.
    pub(crate) fn note_measured(&mut self, worker: WorkerKey) {
        if !self.stopped && self.seat_of(worker).is_some() {
            self.stands_by = Some(worker);
        }
    }

    /// Returns true if a worker of this node waits to restore its measured weights, or is restoring them.
    pub(crate) fn is_standing_by(&self) -> bool {
        let open = |seat: &Seat| seat.worker.is_some() && seat.worker == self.stands_by && !seat.closed;
        self.seats.values().any(open)
    }

    /// Returns true if all of this node's workers have made their last batches or are lost, except the one that stands
    /// by to restore weights that it has measured.
    pub(crate) fn is_closed_but_for_it(&self) -> bool {
        let done = |seat: &Seat| seat.closed || seat.worker.is_none() || seat.worker == self.stands_by;
        self.seats.values().all(done)
    }

    /// Takes a worker that has opened the data, in order to give it this node's replica to save.
    pub(crate) fn take_ready(&mut self) -> Option<WorkerKey> {
        let worker = self.ready.pop_first()?;
        self.measures = Some(worker);
        Some(worker)
    }

    /// Takes a worker that has reported its digest out of the run, so that it can open the data again and be given this
    /// node's replica to save.
    pub(crate) fn take_finished(&mut self) -> Option<WorkerKey> {
        let seat = self
            .seats
            .values()
            .find(|seat| seat.finished && seat.worker.is_some())?;
        let worker = seat.worker?;
        self.detached(worker);
        Some(worker)
    }

    /// Returns true if no further batch will be made here: all origins (workers' streams of batches) of this node are
    /// closed or have lost their workers. A seat without a worker makes no batch either.
    pub(crate) fn is_closed(&self) -> bool {
        let done = |seat: &Seat| seat.closed || seat.worker.is_none() && !planted(Bug::EmptySeatUntold);
        self.seats.values().all(done)
    }

    pub(crate) fn stats(&self) -> WorkerStats {
        let stats: Vec<WorkerStats> = self.seats.values().map(Seat::stats).collect();
        WorkerStats::combined(stats.iter())
    }

    pub(crate) fn progressed(&mut self, progress: Progress, now: Duration) {
        if progress.moved != self.progress.moved {
            self.moved = Some(now);
        }
        self.stranded = progress.stranded.then(|| self.stranded.unwrap_or(now));
        self.progress = progress;
    }

    /// Returns true if a large transfer to or from this node has made progress a moment ago.
    pub(crate) fn is_moving(&self, now: Duration, limits: &RunLimits) -> bool {
        self.moved.is_some_and(|at| now.saturating_sub(at) < limits.moving)
    }

    /// Returns true if this node begins with the same weights as all others, so that it needs nothing from them first.
    pub(crate) fn begins_alike(&self, me: NodeId) -> bool {
        !self.plan.is_newcomer(me) && self.plan.resumed.is_empty()
    }

    /// Returns true if this node has never had the batches that the others have.
    pub(crate) fn is_behind(&self, me: NodeId) -> bool {
        self.seated.is_none() && !self.progress.ready && !self.begins_alike(me)
    }
}
