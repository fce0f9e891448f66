//! A run whose exchange is there: seats of workers, and when it is measured, written down, stopped and done.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::attach::{DataInfo, WorkerStats};
use protocol::control::Begin;
use protocol::ids::NodeId;
use protocol::run_beat::StopReason;

use super::active::{ActiveRun, Scope, State};
use super::event::{ExchangeOrder, Progress, WorkerKey};
use super::planted::{Bug, planted};
use super::seat::Seat;
use super::settling::Settling;

/// Evaluations in an epoch, with a target that is to be hit and without.
const EVALUATIONS_WITH_TARGET: u64 = 16;
const EVALUATIONS: u64 = 1;
/// A node that got some of a large parcel within this time is on its way.
const MOVING: Duration = Duration::from_secs(2);

/// What a run has while there is an exchange.
pub(super) struct Exchanging {
    pub(super) begin: Begin,
    pub(super) seats: BTreeMap<usize, Seat>,
    /// Workers that were asked to open the data, have opened it, and cannot.
    asked: BTreeSet<WorkerKey>,
    pub(super) ready: BTreeSet<WorkerKey>,
    refused: BTreeSet<WorkerKey>,
    /// The one that was given the ledger to save it.
    measures: Option<WorkerKey>,
    pub(super) progress: Progress,
    opened: Duration,
    /// When workers were put to work. Then this node had what the others had.
    seated: Option<Duration>,
    checkpointed: Duration,
    evaluate_at: u64,
    /// Since when nobody has had anything to give to this node, which has nothing.
    stranded: Option<Duration>,
    /// When parcels last moved.
    moved: Option<Duration>,
}

impl Exchanging {
    pub(super) fn new(begin: Begin, me: NodeId, ready: BTreeSet<WorkerKey>, now: Duration) -> Self {
        Self {
            seats: begin.slots_of(me).map(|slot| (slot, Seat::default())).collect(),
            begin,
            asked: BTreeSet::new(),
            ready,
            refused: BTreeSet::new(),
            measures: None,
            progress: Progress::default(),
            opened: now,
            seated: None,
            checkpointed: now,
            evaluate_at: 0,
            stranded: None,
            moved: None,
        }
    }

    /// Whether a worker is to open the data, which it was not asked for yet: as many are as seats are empty.
    pub(super) fn wants(&mut self, worker: WorkerKey) -> bool {
        let known = [&self.asked, &self.ready, &self.refused]
            .iter()
            .any(|set| set.contains(&worker));
        let vacant = self.seats.values().filter(|seat| seat.worker.is_none()).count();
        let known = known || self.measures == Some(worker);
        let wanted = !known && self.seat_of(worker).is_none() && vacant > self.asked.len() + self.ready.len();
        wanted && self.asked.insert(worker)
    }

    pub(super) fn seat_of(&mut self, worker: WorkerKey) -> Option<&mut Seat> {
        self.seats.values_mut().find(|seat| seat.worker == Some(worker))
    }

    /// A worker has opened the data, or cannot.
    pub(super) fn prepared(&mut self, worker: WorkerKey, data: Result<DataInfo, String>) {
        if !self.asked.remove(&worker) {
            return;
        }
        match data {
            Ok(data) if data == self.begin.data => {
                self.ready.insert(worker);
                return;
            }
            Ok(_) => tracing::error!("the data has changed since the run began: the worker is not used"),
            Err(reason) => tracing::error!(reason, "a worker that was started again cannot take part"),
        }
        self.refused.insert(worker);
    }

    /// A worker is gone; whether it had a seat.
    pub(super) fn detached(&mut self, worker: WorkerKey) -> bool {
        for set in [&mut self.asked, &mut self.ready, &mut self.refused] {
            set.remove(&worker);
        }
        self.measures.take_if(|measures| *measures == worker);
        let seat = self.seat_of(worker);
        let seated = seat.is_some();
        seat.into_iter().for_each(Seat::leave);
        seated
    }

    /// A worker that has opened the data is given the ledger to save it.
    pub(super) fn take_ready(&mut self) -> Option<WorkerKey> {
        let worker = self.ready.pop_first()?;
        self.measures = Some(worker);
        Some(worker)
    }

    /// A worker that has told its digest leaves its seat.
    pub(super) fn take_finished(&mut self) -> Option<WorkerKey> {
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
    pub(super) fn is_closed(&self) -> bool {
        let done = |seat: &Seat| seat.closed || seat.worker.is_none() && !planted(Bug::EmptySeatUntold);
        self.seats.values().all(done)
    }

    pub(super) fn stats(&self) -> WorkerStats {
        let stats: Vec<WorkerStats> = self.seats.values().map(Seat::stats).collect();
        WorkerStats::combined(stats.iter())
    }

    pub(super) fn progressed(&mut self, progress: Progress, now: Duration) {
        if progress.moved != self.progress.moved {
            self.moved = Some(now);
        }
        self.stranded = progress.stranded.then(|| self.stranded.unwrap_or(now));
        self.progress = progress;
    }

    /// Whether a large parcel is on its way here or from here.
    pub(super) fn is_moving(&self, now: Duration) -> bool {
        self.moved.is_some_and(|at| now.saturating_sub(at) < MOVING)
    }

    /// Whether this node begins with what everybody begins with, so that it needs nothing from others first.
    fn begins_alike(&self, me: NodeId) -> bool {
        !self.begin.is_guest(me) && self.begin.resumed.is_none()
    }

    /// Whether this node has never had what the others have.
    pub(super) fn is_behind(&self, me: NodeId) -> bool {
        self.seated.is_none() && !self.progress.ready && !self.begins_alike(me)
    }
}

impl ActiveRun {
    /// The exchange is there: training can begin.
    pub(super) fn opened(&mut self, opened: Result<(), String>, scope: &mut Scope<'_>) {
        let State::Opening { begin, ready, .. } = &self.state else {
            return;
        };
        if let Err(reason) = opened {
            return self.withdraw(&reason, scope);
        }
        let ready = ready.intersection(scope.workers).copied().collect();
        let mut exchanging = Exchanging::new((**begin).clone(), scope.me.id, ready, scope.now);
        exchanging.evaluate_at = self.evaluation_interval(begin.data.train);
        self.state = State::Training(Box::new(exchanging));
        self.news = true;
        if self.stop.is_some() {
            scope.order(ExchangeOrder::StopWorkers);
        }
    }

    /// Others know of guests that this node does not know. Who has agreed on how to end takes no more.
    pub(super) fn admit(&mut self, theirs: &Begin, scope: &mut Scope<'_>) {
        if self.members.own.frozen || matches!(self.state, State::Finishing(..)) {
            return;
        }
        let now = scope.now;
        let news: Vec<_> = match &mut self.state {
            State::Training(exchanging) | State::Settling(exchanging, _) => {
                let guests = theirs.participants.iter().filter(|one| one.guest);
                guests
                    .filter(|guest| exchanging.begin.admit((*guest).clone()))
                    .cloned()
                    .collect()
            }
            // The exchange is started with those that are known now; the others are told of again.
            _ => return,
        };
        for guest in news {
            tracing::info!(node = guest.name, "a node joins the run");
            self.members.admit(std::iter::once(guest.node), now);
            self.news = true;
            scope.order(ExchangeOrder::Joined(guest));
        }
    }

    /// Goes on as far as it can: seats workers, stops, measures, writes down, and settles when all is done.
    pub(super) fn train(&mut self, scope: &mut Scope<'_>) {
        if self.members.is_left_behind(scope.now, scope.limits) {
            self.stop(StopReason::OthersEnded, scope);
        }
        let State::Training(exchanging) = &mut self.state else {
            return;
        };
        let now = scope.now;
        let since = |at: Duration| now.saturating_sub(at);
        if exchanging.stranded.is_some_and(|at| since(at) > scope.limits.stranded) {
            let reason = "all who had something of it are gone; `tau start --resume` goes on from a checkpoint";
            return self.withdraw(reason, scope);
        }
        let settles = |node: NodeId| self.members.state(node).is_some_and(|state| state.closed);
        let ends = self.stop.is_some() || exchanging.begin.participants.iter().any(|one| settles(one.node));
        if ends && exchanging.is_behind(scope.me.id) {
            return self.withdraw("it ends before this node has caught up", scope);
        }
        let waited = exchanging.begins_alike(scope.me.id) && since(exchanging.opened) > scope.limits.links;
        if exchanging.seated.is_none() && (exchanging.progress.ready || waited) {
            exchanging.seated = Some(now);
        }
        if self.stop.is_some() || exchanging.progress.complete {
            return self.begin_to_settle(scope);
        }
        if exchanging.seated.is_some() {
            seat_workers(exchanging, scope);
        }
        let elapsed = exchanging.seated.map(|at| since(at).as_secs_f64());
        if self
            .job
            .max_seconds
            .zip(elapsed)
            .is_some_and(|(limit, elapsed)| elapsed >= limit)
        {
            return self.stop(StopReason::TimeUp, scope);
        }
        let written = since(exchanging.checkpointed).as_secs_f64();
        if self.job.checkpoint_every.is_some_and(|every| written >= every) {
            self.checkpoint(scope);
        }
        self.evaluate(scope);
    }

    fn begin_to_settle(&mut self, scope: &Scope<'_>) {
        self.news = true;
        self.change_state(|state| match state {
            State::Training(exchanging) => State::Settling(exchanging, Settling::new(scope.now)),
            other => other,
        });
    }

    /// Writes a checkpoint, with what workers alone have.
    pub(super) fn checkpoint(&mut self, scope: &mut Scope<'_>) {
        if let State::Training(exchanging) = &mut self.state
            && exchanging.seated.is_some()
        {
            exchanging.checkpointed = scope.now;
            scope.order(ExchangeOrder::Checkpoint);
        }
    }

    fn evaluation_interval(&self, train: u64) -> u64 {
        let often = if self.job.target_accuracy.is_some() {
            EVALUATIONS_WITH_TARGET
        } else {
            EVALUATIONS
        };
        (train / often).max(1)
    }

    /// One worker of the whole cluster measures now and then: the first of the first node that is there.
    fn evaluate(&mut self, scope: &mut Scope<'_>) {
        let silent = self.members.silent(scope.now, scope.limits);
        let interval = self
            .exchanging()
            .map_or(1, |one| self.evaluation_interval(one.begin.data.train));
        let State::Training(exchanging) = &mut self.state else {
            return;
        };
        let begin = &exchanging.begin;
        let first = begin.participants.iter().find(|one| !silent.contains(&one.node));
        let total = begin.data.train * u64::from(begin.job.epochs);
        let samples = exchanging.progress.samples;
        let due = (exchanging.evaluate_at..total).contains(&samples);
        if due && first.is_some_and(|one| one.node == scope.me.id) {
            exchanging.evaluate_at = samples + interval;
            scope.order(ExchangeOrder::Evaluate);
        }
    }
}

/// Puts workers that are ready into empty seats.
fn seat_workers(exchanging: &mut Exchanging, scope: &mut Scope<'_>) {
    while let Some((&slot, seat)) = exchanging.seats.iter_mut().find(|(_, seat)| seat.worker.is_none())
        && let Some(worker) = exchanging.ready.pop_first()
    {
        seat.take(worker);
        scope.order(ExchangeOrder::Seat { worker, slot });
    }
}
