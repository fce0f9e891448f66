//! What a run has while there is an exchange: seats of workers, and how far the exchange is.

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

/// What a run has while there is an exchange.
pub(crate) struct Exchanging {
    pub(crate) plan: RunPlan,
    pub(crate) seats: BTreeMap<usize, Seat>,
    /// Workers that were asked to open the data, have opened it, and cannot.
    pub(crate) asked: BTreeSet<WorkerKey>,
    pub(crate) ready: BTreeSet<WorkerKey>,
    pub(crate) refused: BTreeSet<WorkerKey>,
    /// The one that was given the ledger to save it.
    pub(crate) measures: Option<WorkerKey>,
    pub(crate) progress: Progress,
    pub(crate) opened: Duration,
    /// When workers were put to work. Then this node had what the others had.
    pub(crate) seated: Option<Duration>,
    pub(crate) checkpointed: Duration,
    /// The ledger was kept because no pipeline is complete without the nodes that have left.
    pub(crate) kept_incomplete: bool,
    /// Since when participants are given up, or have left.
    pub(crate) lost_since: BTreeMap<NodeId, Duration>,
    pub(crate) evaluate_at: u64,
    /// Workers were told to take no further step.
    pub(crate) stopped: bool,
    /// The worker that has measured weights which may be kept. When all others have closed it brings them back.
    pub(crate) stands_by: Option<WorkerKey>,
    /// It was told to.
    pub(crate) goes_back: bool,
    /// Since when nobody has had anything to give to this node, which has nothing.
    pub(crate) stranded: Option<Duration>,
    /// When parcels last moved.
    pub(crate) moved: Option<Duration>,
    /// Whether it makes no progress.
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

    /// Returns whether a worker is to open the data, which it was not asked for before: as many are as seats are empty.
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

    /// A worker has opened the data, or cannot. Returns whether it can take part, as far as it was asked.
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

    /// A worker is gone; whether it had a seat.
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

    /// Whether a worker is gone before its time, and none has come in its place.
    pub(crate) fn is_unmanned(&self) -> bool {
        self.seats.values().any(|seat| seat.worker.is_none() && seat.lost)
    }

    /// A worker has measured weights that may be kept. Where all were told to stop already, it is too late for them.
    pub(crate) fn note_measured(&mut self, worker: WorkerKey) {
        if !self.stopped && self.seat_of(worker).is_some() {
            self.stands_by = Some(worker);
        }
    }

    /// Whether a worker here waits to bring back what it has measured, or is at it.
    pub(crate) fn is_standing_by(&self) -> bool {
        let open = |seat: &Seat| seat.worker.is_some() && seat.worker == self.stands_by && !seat.closed;
        self.seats.values().any(open)
    }

    /// Whether all others' origins here are closed.
    pub(crate) fn is_closed_but_for_it(&self) -> bool {
        let done = |seat: &Seat| seat.closed || seat.worker.is_none() || seat.worker == self.stands_by;
        self.seats.values().all(done)
    }

    /// A worker that has opened the data is given the ledger to save it.
    pub(crate) fn take_ready(&mut self) -> Option<WorkerKey> {
        let worker = self.ready.pop_first()?;
        self.measures = Some(worker);
        Some(worker)
    }

    /// A worker that has told its digest leaves its seat.
    pub(crate) fn take_finished(&mut self) -> Option<WorkerKey> {
        let seat = self
            .seats
            .values()
            .find(|seat| seat.finished && seat.worker.is_some())?;
        let worker = seat.worker?;
        self.detached(worker);
        Some(worker)
    }

    /// All origins of this node are closed, or have lost their workers: no further batch will be made here. A seat that
    /// is empty makes none either.
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

    /// Whether a large parcel is on its way here or from here.
    pub(crate) fn is_moving(&self, now: Duration, limits: &RunLimits) -> bool {
        self.moved.is_some_and(|at| now.saturating_sub(at) < limits.moving)
    }

    /// Whether this node begins with what everybody begins with, so that it needs nothing from others first.
    pub(crate) fn begins_alike(&self, me: NodeId) -> bool {
        !self.plan.is_guest(me) && self.plan.resumed.is_empty()
    }

    /// Whether this node has never had what the others have.
    pub(crate) fn is_behind(&self, me: NodeId) -> bool {
        self.seated.is_none() && !self.progress.ready && !self.begins_alike(me)
    }
}
