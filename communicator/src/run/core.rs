//! The runs of one node as a pure core: events with the time go in, effects come out. It awaits nothing and reads no
//! clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::reasons::{Excluded, RunFailure};
use protocol::wire::attach::FromWorker;
use protocol::wire::control::NodeInfo;
use protocol::wire::run_beat::{GivenUp, RunBeat};
use protocol::wire::run_plan::RunPlan;

use super::active::{ActiveRun, Scope, State};
use super::checkpoint_search::CheckpointSearch;
use super::coordination::Coordination;
use super::dismissals::Dismissals;
use super::event::{MemberChange, RunEffect, RunEvent, Ticket, WorkerKey};
use super::states::Preparing;
use crate::planted::{Bug, planted};
use crate::timing::RunLimits;

/// A run whose start this node coordinates.
pub(super) struct Coordinating {
    pub(super) run: RunId,
    pub(super) coordination: Coordination,
    pub(super) ticket: Ticket,
    /// Time at which the nodes that had not answered the request to prepare were last asked.
    pub(super) asked: Duration,
}

/// State of all runs that a node knows: its own, those elsewhere, and those that are over.
pub(crate) struct RunCore {
    pub(super) me: NodeInfo,
    workers_wanted: usize,
    pub(super) limits: RunLimits,
    pub(super) peers: BTreeMap<NodeId, NodeInfo>,
    /// Peers whose beats (periodic state messages) do not reach this node directly.
    pub(super) away: BTreeSet<NodeId>,
    /// Peers whose processes have ended, with the time at which this node found out.
    dead: BTreeMap<NodeId, Duration>,
    pub(super) workers: BTreeSet<WorkerKey>,
    dismissals: Dismissals,
    /// Search for the checkpoint of a run that this node was asked to resume.
    pub(super) search: Option<CheckpointSearch>,
    pub(super) coordinating: Option<Coordinating>,
    pub(super) current: Option<ActiveRun>,
    /// Last beat (state message) about the run before the current one, still sent for slower participants, and the time
    /// at which the current run was entered.
    before: Option<(RunBeat, Duration)>,
    /// Runs that are over here, each with true if this node took part after the run had begun: it does not join such a
    /// run again.
    pub(super) ended: Vec<(RunId, bool)>,
    /// Number of the newest beat (periodic state message) of each node; older beats are ignored.
    newest: BTreeMap<NodeId, u64>,
    /// Runs that go on at other nodes, by node. A client's stop request for such a run may come to this node.
    pub(super) elsewhere: BTreeMap<NodeId, RunId>,
    /// The run whose stop request this node last forwarded, and when.
    pub(super) handed_on: Option<(RunId, Duration)>,
    /// Coordinators that asked for this node's checkpoints, by the run that is going to be started.
    pub(super) asked_by: BTreeMap<RunId, NodeId>,
    /// True once this node is about to end: it leaves its run and joins no other.
    pub(super) leaving: bool,
    pub(super) has_left: bool,
    /// Time of the last event of any kind. A long gap means that this node itself stood still.
    lived: Option<Duration>,
    published: Duration,
}

impl RunCore {
    /// Creates the core of a node that is in no run.
    pub(crate) fn new(me: NodeInfo, workers_wanted: usize, limits: &RunLimits) -> Self {
        Self {
            me,
            workers_wanted,
            limits: *limits,
            peers: BTreeMap::new(),
            away: BTreeSet::new(),
            dead: BTreeMap::new(),
            workers: BTreeSet::new(),
            dismissals: Dismissals::default(),
            search: None,
            coordinating: None,
            current: None,
            before: None,
            ended: Vec::new(),
            newest: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            handed_on: None,
            asked_by: BTreeMap::new(),
            leaving: false,
            has_left: false,
            lived: None,
            published: Duration::ZERO,
        }
    }

    /// Returns the time limits for the newest run: those of this node, with the changes that the run's job asks for.
    pub(super) fn limits(&self) -> RunLimits {
        let run = self.current.as_ref();
        run.map_or(self.limits, |run| self.limits.of(&run.job))
    }

    /// Handles one event about this node's runs and appends the effects that follow from it.
    pub(crate) fn handle(&mut self, event: RunEvent, now: Duration, effects: &mut Vec<RunEffect>) {
        let first = effects.len();
        self.notice_a_standstill(now, effects);
        let acts = !planted(Bug::StopUnacted) || matches!(event, RunEvent::Progress(..) | RunEvent::Worker(..));
        match event {
            RunEvent::Request { ticket, run, request } => self.request(ticket, run, request, now, effects),
            RunEvent::ControlMessage { from, message } => self.message(from, message, now, effects),
            RunEvent::Beat { from, number, runs } => {
                // A beat that a newer one has overtaken is out of date.
                let newest = self.newest.entry(from).or_insert(0);
                if number > *newest {
                    *newest = number;
                    self.beat(from, runs, now, effects);
                }
            }
            RunEvent::Member(change) => self.member(change, now, effects),
            RunEvent::Leave => self.leave(now, effects),
            RunEvent::LeaveUnfinished => self.with_run(now, effects, ActiveRun::leave_unfinished),
            RunEvent::Attached(worker) => {
                self.workers.insert(worker);
            }
            RunEvent::Detached(worker) => self.detached(worker, now, effects),
            RunEvent::Worker(worker, message) => self.worker(worker, message, now, effects),
            RunEvent::Offered { run, offer } => {
                self.with_named(run, now, effects, |run, scope| run.worked_out(offer, scope));
            }
            RunEvent::LookedUp { run, found } => self.looked_up(run, found, effects),
            RunEvent::Opened { run, opened } => {
                self.with_named(run, now, effects, |run, scope| run.opened(opened, scope));
            }
            RunEvent::Linked { run, node, up } => {
                self.with_named(run, now, effects, |run, _| run.members.linked(node, up));
            }
            RunEvent::Progress(run, progress) => self.with_named(run, now, effects, |run, _| {
                if let Some(exchanging) = run.exchanging_mut() {
                    exchanging.progressed(progress, now);
                }
            }),
            RunEvent::Lied { run, node } => self.with_named(run, now, effects, |run, _| {
                if !run.is_over() && !planted(Bug::PrivateQuarantine) {
                    run.news |= run.members.break_with(node, GivenUp::Lied);
                }
            }),
            RunEvent::Diverged(run, reason) => {
                self.with_named(run, now, effects, |run, scope| run.note_divergence(reason, scope));
            }
            RunEvent::ExchangeFailed(run, reason) => self.with_named(run, now, effects, |run, scope| {
                if !run.is_over() {
                    run.withdraw(Excluded::ExchangeFailed(reason.into()), scope);
                }
            }),
            RunEvent::StopSeen(run) => self.with_named(run, now, effects, |run, scope| {
                if run.stop.is_none() {
                    run.stop_workers(scope);
                }
            }),
            RunEvent::Settlement(run, settlement) => self.with_named(run, now, effects, |run, _| {
                if let State::Finishing(_, finishing) = &mut run.state {
                    finishing.settled(settlement, now);
                }
            }),
            RunEvent::Kept(run, kept) => self.with_named(run, now, effects, |run, _| {
                run.kept_on_leaving(&kept);
                if let State::Finishing(_, finishing) = &mut run.state {
                    finishing.kept(kept);
                }
            }),
            RunEvent::Tick => self.tick(now, effects),
        }
        self.with_run(now, effects, |run, scope| {
            if acts || !matches!(run.state, State::Training(_)) {
                run.advance(scope);
            }
        });
        self.coordinate(now, effects);
        self.dismissals.note(&effects[first..], now);
        self.publish(now, effects);
        self.tell_left(effects);
    }

    /// Handles a change of a cluster member's liveness.
    fn member(&mut self, change: MemberChange, now: Duration, effects: &mut Vec<RunEffect>) {
        match change {
            MemberChange::Alive(info) => {
                self.away.remove(&info.id);
                self.dead.remove(&info.id);
                let node = info.id;
                self.peers.insert(node, info);
                self.with_run(now, effects, |run, _| run.members.lives(node));
            }
            MemberChange::Silent(node) => {
                self.away.insert(node);
                self.lost(node, Excluded::Silent);
            }
            MemberChange::Dead(node) => {
                self.away.insert(node);
                self.dead.insert(node, now);
                self.lost(node, Excluded::Dead);
                self.with_run(now, effects, |run, _| run.members.dies(node, now));
            }
            MemberChange::Left(node) => {
                self.forget(node);
                self.with_run(now, effects, |run, _| run.news |= run.members.leaves(node));
            }
            MemberChange::Succeeded(node) => self.forget(node),
        }
    }

    /// Forgets a node that is no longer a member of the cluster.
    fn forget(&mut self, node: NodeId) {
        self.peers.remove(&node);
        self.away.remove(&node);
        self.dead.remove(&node);
        self.elsewhere.remove(&node);
        self.newest.remove(&node);
        self.lost(node, Excluded::Left);
    }

    /// Detects that this node itself stood still, by a long gap between events, which come several times a second. The
    /// participants' silence in the gap is excused. After a longer gap, the start of a run that this node coordinates
    /// is called off, because the other nodes may have given it up.
    fn notice_a_standstill(&mut self, now: Duration, effects: &mut Vec<RunEffect>) {
        let gap = self.lived.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.lived = Some(now);
        if gap > self.limits.stood_still_after
            && let Some(run) = &mut self.current
        {
            run.members.stood_still(gap);
        }
        // The nodes that prepare a run with this coordinator may have called it off meanwhile, whatever they answered
        // before.
        if gap > self.limits.orphaned / 2
            && let Some(run) = self.coordinating.as_ref().map(|one| one.run)
        {
            self.with_named(run, now, effects, |run, scope| {
                run.fail(RunFailure::StoodStill(gap), scope);
            });
            self.call_off(effects);
        }
    }

    /// Calls `act` with the newest run, if there is one.
    pub(super) fn with_run(
        &mut self,
        now: Duration,
        effects: &mut Vec<RunEffect>,
        act: impl FnOnce(&mut ActiveRun, &mut Scope<'_>),
    ) {
        if let Some(run) = &mut self.current {
            let mut scope = Scope {
                me: &self.me,
                now,
                limits: &self.limits.of(&run.job),
                workers: &self.workers,
                workers_wanted: self.workers_wanted,
                effects,
            };
            act(run, &mut scope);
        }
    }

    /// Calls `act` with the newest run if it has this id.
    pub(super) fn with_named(
        &mut self,
        name: RunId,
        now: Duration,
        effects: &mut Vec<RunEffect>,
        act: impl FnOnce(&mut ActiveRun, &mut Scope<'_>),
    ) {
        if self.current.as_ref().is_some_and(|run| run.run == name) {
            self.with_run(now, effects, act);
        }
    }

    /// Enters a run. All attached workers are then asked to open its data.
    pub(super) fn enter(&mut self, mut run: ActiveRun, now: Duration) {
        if let Some(mut before) = self.current.take() {
            /// Number of ended runs that are remembered; older ones are never joined again.
            const ENDED_MAX: usize = 64;
            self.ended.truncate(ENDED_MAX - 1);
            self.ended.insert(0, (before.run, before.took_part()));
            let again = before.run == run.run;
            self.before = (!again).then(|| (before.beat(now, &self.limits.of(&before.job)), now));
            // The node may have been in this run before: its new states must have higher numbers than its old ones.
            run.members.own.number = before.members.own.number;
        }
        for (&node, &found) in &self.dead {
            run.members.dies(node, found);
        }
        run.news = true;
        self.current = Some(run);
    }

    /// Returns true if this node was in a run that is over here.
    pub(super) fn has_ended(&self, run: RunId) -> bool {
        let now = self.current.as_ref().is_some_and(|one| one.run == run && one.is_over());
        now || self.ended.iter().any(|&(ended, _)| ended == run)
    }

    /// Records that a node can no longer answer a search for checkpoints or a prepare request.
    fn lost(&mut self, node: NodeId, why: Excluded) {
        if let Some(search) = &mut self.search {
            search.answer(node, None);
        }
        if let Some(one) = &mut self.coordinating {
            one.coordination.answer(node, Err(why));
        }
    }

    fn detached(&mut self, worker: WorkerKey, now: Duration, effects: &mut Vec<RunEffect>) {
        self.workers.remove(&worker);
        self.dismissals.note_dropped(worker);
        self.with_run(now, effects, |run, scope| run.detached(worker, scope));
    }

    fn worker(&mut self, worker: WorkerKey, message: FromWorker, now: Duration, effects: &mut Vec<RunEffect>) {
        if !self.workers.contains(&worker) {
            return;
        }
        if matches!(message, FromWorker::Idle) {
            self.dismissals.note_dropped(worker);
            return;
        }
        self.with_run(now, effects, |run, scope| run.hear_worker(worker, message, scope));
    }

    fn tick(&mut self, now: Duration, effects: &mut Vec<RunEffect>) {
        for worker in self.dismissals.take_stuck(now, self.limits.dismiss) {
            tracing::warn!(
                event = "worker_stuck",
                "a worker does not release a run that has ended; the worker is restarted"
            );
            effects.push(RunEffect::HangUp(worker));
        }
        self.ask_again(now, effects);
        self.with_run(now, effects, |run, scope| run.leave_the_succeeded(scope));
        let remember = self.limits().remember;
        self.before.take_if(|(_, ended)| now.saturating_sub(*ended) > remember);
    }

    /// Sends a beat (state message) about this node's runs to all nodes, if their state has changed or a beat is due.
    fn publish(&mut self, now: Duration, effects: &mut Vec<RunEffect>) {
        let Some(run) = &mut self.current else {
            return;
        };
        let due = now.saturating_sub(self.published) >= self.limits.beat_every;
        if !std::mem::take(&mut run.news) && !due {
            return;
        }
        self.published = now;
        let beat = run.beat(now, &self.limits.of(&run.job));
        let before = self.before.iter().map(|(beat, _)| beat.clone());
        effects.push(RunEffect::Publish {
            beats: std::iter::once(beat).chain(before).collect(),
            phase: run.phase(),
        });
    }

    pub(super) fn preparing(
        &self,
        run: RunId,
        coordinator: NodeId,
        job: Box<protocol::job::Job>,
        joins: Option<RunPlan>,
        now: Duration,
    ) -> ActiveRun {
        ActiveRun::new(run, coordinator, job, Preparing::new(joins, now), self.me.id, now)
    }
}
