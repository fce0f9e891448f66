//! The runs of one node: events with the time in, effects out. Nothing is awaited here, and no clock is read.

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

/// A run that this node was asked to start.
pub(super) struct Coordinating {
    pub(super) run: RunId,
    pub(super) coordination: Coordination,
    pub(super) ticket: Ticket,
    /// When those that have not answered were last asked.
    pub(super) asked: Duration,
}

/// All that a node knows of runs.
pub(crate) struct RunCore {
    pub(super) me: NodeInfo,
    workers_wanted: usize,
    pub(super) limits: RunLimits,
    pub(super) peers: BTreeMap<NodeId, NodeInfo>,
    /// Those of them that are not heard directly.
    pub(super) away: BTreeSet<NodeId>,
    /// Those of them whose processes have ended, and when this node found out.
    dead: BTreeMap<NodeId, Duration>,
    pub(super) workers: BTreeSet<WorkerKey>,
    dismissals: Dismissals,
    /// A run that this node was asked to go on with.
    pub(super) search: Option<CheckpointSearch>,
    pub(super) coordinating: Option<Coordinating>,
    pub(super) current: Option<ActiveRun>,
    /// The run before, for those that were slower, and when it ended.
    before: Option<(RunBeat, Duration)>,
    /// Runs that are over here, and whether this node took part in them once they had begun: nobody does so twice under
    /// one name.
    pub(super) ended: Vec<(RunId, bool)>,
    /// The numbers of the newest beats.
    newest: BTreeMap<NodeId, u64>,
    /// Runs that go on at other nodes: a stop may come here.
    pub(super) elsewhere: BTreeMap<NodeId, RunId>,
    /// The run whose stop was last handed on, and when.
    pub(super) handed_on: Option<(RunId, Duration)>,
    /// Who wants to know which checkpoints this node has, by the run that it is for.
    pub(super) asked_by: BTreeMap<RunId, NodeId>,
    /// This node is about to end, and has left its run.
    pub(super) leaving: bool,
    pub(super) has_left: bool,
    /// When anything last happened.
    lived: Option<Duration>,
    published: Duration,
}

impl RunCore {
    /// A node that has nothing to do.
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

    /// What the newest run waits for.
    pub(super) fn limits(&self) -> RunLimits {
        let run = self.current.as_ref();
        run.map_or(self.limits, |run| self.limits.of(&run.job))
    }

    /// Takes note of an event and appends what is to be done.
    pub(crate) fn handle(&mut self, event: RunEvent, now: Duration, effects: &mut Vec<RunEffect>) {
        let first = effects.len();
        self.notice_a_standstill(now, effects);
        let acts = !planted(Bug::StopUnacted) || matches!(event, RunEvent::Progress(..) | RunEvent::Worker(..));
        match event {
            RunEvent::Request { ticket, run, request } => self.request(ticket, run, request, now, effects),
            RunEvent::ControlMessage { from, message } => self.message(from, message, now, effects),
            RunEvent::Beat { from, number, runs } => {
                // One that was overtaken tells of what is not so any more.
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

    /// Takes note of what became of a member of the cluster.
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

    /// Forgets a node that is no member of the cluster any more.
    fn forget(&mut self, node: NodeId) {
        self.peers.remove(&node);
        self.away.remove(&node);
        self.dead.remove(&node);
        self.elsewhere.remove(&node);
        self.newest.remove(&node);
        self.lost(node, Excluded::Left);
    }

    /// Something happens several times a second. If nothing did for longer, it was this node that stood still.
    fn notice_a_standstill(&mut self, now: Duration, effects: &mut Vec<RunEffect>) {
        let gap = self.lived.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.lived = Some(now);
        if gap > self.limits.stood_still_after
            && let Some(run) = &mut self.current
        {
            run.members.stood_still(gap);
        }
        // Those that it was preparing a run with may have called that off meanwhile, whatever they said before.
        if gap > self.limits.orphaned / 2
            && let Some(run) = self.coordinating.as_ref().map(|one| one.run)
        {
            self.with_named(run, now, effects, |run, scope| {
                run.fail(RunFailure::StoodStill(gap), scope);
            });
            self.call_off(effects);
        }
    }

    /// Does something with the newest run, if there is one.
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

    /// The same, if it is the run that is meant.
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

    /// Enters a run; all attached workers are asked.
    pub(super) fn enter(&mut self, mut run: ActiveRun, now: Duration) {
        if let Some(mut before) = self.current.take() {
            /// Nobody comes back to what was over so many runs ago.
            const ENDED_MAX: usize = 64;
            self.ended.truncate(ENDED_MAX - 1);
            self.ended.insert(0, (before.run, before.took_part()));
            let again = before.run == run.run;
            self.before = (!again).then(|| (before.beat(now, &self.limits.of(&before.job)), now));
            // It may be a run that this node was in before: its states of then are older than those to come.
            run.members.own.number = before.members.own.number;
        }
        for (&node, &found) in &self.dead {
            run.members.dies(node, found);
        }
        run.news = true;
        self.current = Some(run);
    }

    /// Whether this node has had a part in a run, which is over.
    pub(super) fn has_ended(&self, run: RunId) -> bool {
        let now = self.current.as_ref().is_some_and(|one| one.run == run && one.is_over());
        now || self.ended.iter().any(|&(ended, _)| ended == run)
    }

    /// A node cannot answer any more.
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

    /// Tells everybody how far this node is, when that has changed and now and then.
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
