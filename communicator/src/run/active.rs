//! One run on this node: the data that all its phases share, and the phases as states that own their own data.

use protocol::bounded::BoundedVec;
use std::collections::BTreeSet;
use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::job::Job;
use protocol::reasons::waiting::{self, WaitingFor};
use protocol::reasons::{Divergence, Excluded, RunFailure};
use protocol::stats::WorkerStats;
use protocol::stats::measured::{Course, Scores};
use protocol::wire::control::{NodeInfo, Phase, RunResult, RunStatus};
use protocol::wire::run_beat::{RunBeat, StopReason};
use protocol::wire::run_plan::RunPlan;

use super::event::{ExchangeOrder, Liveness, RunEffect, WorkerKey};
use super::leaving::Leaving;
use super::members::Members;
use super::patience::Patience;
use super::states::{Exchanging, Finishing, Preparing, Settling};
use crate::log_context::NEWS;
use crate::planted::{Bug, planted};
use crate::timing::RunLimits;

/// Context of one call into a run: this node's identity, the time, the limits, the workers, and the list that takes the
/// effects.
pub(super) struct Scope<'a> {
    pub(super) me: &'a NodeInfo,
    pub(super) now: Duration,
    pub(super) limits: &'a RunLimits,
    /// Workers that are attached to this node.
    pub(super) workers: &'a BTreeSet<WorkerKey>,
    pub(super) workers_wanted: usize,
    pub(super) effects: &'a mut Vec<RunEffect>,
}

impl Scope<'_> {
    pub(super) fn order(&mut self, order: ExchangeOrder) {
        self.effects.push(RunEffect::Exchange(order));
    }
}

/// Phase of a run on this node, with the data that only this phase has.
pub(super) enum State {
    /// Workers open the job's data; the run has not begun here.
    Preparing(Preparing),
    /// The run has begun, and the node's actor starts its exchange.
    Opening {
        plan: Box<RunPlan>,
        /// Workers that have opened the data.
        ready: BTreeSet<WorkerKey>,
        since: Duration,
    },
    /// Phase of a run in which workers train.
    Training(Box<Exchanging>),
    /// Workers make no further steps. The participants get to the same batches and agree on the end of the run.
    Settling(Box<Exchanging>, Settling),
    /// All members have agreed on the batches; the model is measured and saved.
    Finishing(Box<Exchanging>, Finishing),
    /// The run is over on this node.
    Ended(EndedRun),
}

/// Outcome of a run that is over on this node.
pub(super) struct EndedRun {
    /// Time at which the run ended on this node.
    at: Duration,
    pub(super) outcome: Result<Box<RunResult>, RunFailure>,
    /// The run's plan with its participants; `None` if the run had not begun here.
    pub(super) plan: Option<RunPlan>,
}

/// State of one run on this node.
pub(super) struct ActiveRun {
    pub(super) run: RunId,
    /// Node that coordinates the start of the run. If this node came later, the node from which it heard of the run.
    pub(super) coordinator: NodeId,
    pub(super) job: Box<Job>,
    pub(super) members: Members,
    pub(super) stop: Option<StopReason>,
    pub(super) diverged: Option<Divergence>,
    /// Newest evaluation scores of the model.
    pub(super) scores: Option<Scores>,
    /// Evaluations that this node's workers have made during the run.
    pub(super) course: Course,
    /// Lowest evaluation loss so far, and the number of evaluations in a row that did not come below it: `--patience`
    /// limits that number.
    pub(super) patience: Patience,
    pub(super) state: State,
    /// Progress of this node's departure from a run that goes on without it.
    pub(super) leaving: Leaving,
    /// True if the run's state has changed since the last beat (a node's periodic state message), so that the next one
    /// is sent at once.
    pub(super) news: bool,
    /// Membership view last sent to the exchange; only changes are sent.
    sent_liveness: Liveness,
    /// Things that the run waits for, the time since which they are the same, and true if they have been logged.
    waits: (Vec<WaitingFor>, Duration, bool),
    /// Number of times that the user's code has failed in this node's workers since one of them emitted a batch.
    pub(super) code_failures: u8,
}

impl ActiveRun {
    pub(super) fn new(
        run: RunId,
        coordinator: NodeId,
        job: Box<Job>,
        preparing: Preparing,
        me: NodeId,
        now: Duration,
    ) -> Self {
        let mut members = Members::new(me);
        members.expect(coordinator, now);
        Self {
            run,
            coordinator,
            job,
            members,
            stop: None,
            diverged: None,
            scores: None,
            course: Course::default(),
            patience: Patience::default(),
            state: State::Preparing(preparing),
            leaving: Leaving::No,
            news: true,
            sent_liveness: Liveness::default(),
            waits: (Vec::new(), now, false),
            code_failures: 0,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }

    /// Returns the time since the run ended on this node; zero while the run goes on.
    pub(super) fn ended_for(&self, now: Duration) -> Duration {
        match &self.state {
            State::Ended(ended) => now.saturating_sub(ended.at),
            _ => Duration::ZERO,
        }
    }

    /// Returns true if the run had begun on this node (the node has the run's plan), or if the node has withdrawn from
    /// it. False for a run that was called off before it began here.
    pub(super) fn took_part(&self) -> bool {
        self.plan().is_some() || self.members.own.withdrawn
    }

    /// Returns true while the run can be called off: it has not begun as far as this node knows. A run that this node
    /// joins late has begun.
    pub(super) fn is_being_prepared(&self) -> bool {
        matches!(&self.state, State::Preparing(preparing) if !preparing.is_guest())
    }

    pub(super) fn phase(&self) -> Phase {
        match self.state {
            State::Preparing(_) | State::Opening { .. } => Phase::Preparing,
            State::Training(_) => Phase::Training,
            State::Settling(..) => Phase::Settling,
            State::Finishing(..) => Phase::Finishing,
            State::Ended(_) => Phase::Ended,
        }
    }

    /// Returns the run's plan; `None` while the run is being prepared.
    pub(super) fn plan(&self) -> Option<&RunPlan> {
        match &self.state {
            State::Preparing(_) => None,
            State::Opening { plan, .. } => Some(plan),
            State::Training(exchanging) | State::Settling(exchanging, _) | State::Finishing(exchanging, _) => {
                Some(&exchanging.plan)
            }
            State::Ended(ended) => ended.plan.as_ref(),
        }
    }

    pub(super) fn exchanging(&self) -> Option<&Exchanging> {
        match &self.state {
            State::Training(exchanging) | State::Settling(exchanging, _) | State::Finishing(exchanging, _) => {
                Some(exchanging)
            }
            _ => None,
        }
    }

    pub(super) fn exchanging_mut(&mut self) -> Option<&mut Exchanging> {
        match &mut self.state {
            State::Training(exchanging) | State::Settling(exchanging, _) | State::Finishing(exchanging, _) => {
                Some(exchanging)
            }
            _ => None,
        }
    }

    /// Returns the reason for which the run has failed, if it has.
    pub(super) fn failure(&self) -> Option<&RunFailure> {
        match &self.state {
            State::Ended(ended) => ended.outcome.as_ref().err(),
            _ => None,
        }
    }

    /// Returns the summed statistics of this node's workers in this run.
    pub(super) fn stats(&self) -> WorkerStats {
        self.exchanging().map_or_else(WorkerStats::default, Exchanging::stats)
    }

    /// Builds this node's beat (periodic state message) about the run: a new numbered state of its own, and the newest
    /// states of all participants.
    pub(super) fn beat(&mut self, now: Duration, limits: &RunLimits) -> RunBeat {
        self.members.own.number += 1;
        self.members.own.given_up = self.members.given_up(now, limits);
        let mut states = self.members.states();
        if planted(Bug::EndUntold) {
            for (_, state) in &mut states {
                (state.ended, state.decided) = (false, false);
            }
        }
        RunBeat {
            run: self.run,
            plan: self.plan().cloned(),
            stop: self.stop,
            diverged: self.diverged.clone(),
            states,
        }
    }

    pub(super) fn status(&self, now: Duration, limits: &RunLimits) -> RunStatus {
        RunStatus {
            run: self.run,
            phase: self.phase(),
            // The plan's job also has the settings that the client left open.
            job: self.plan().map_or(&self.job, |plan| &plan.job).clone(),
            train: self.plan().map_or(0, |plan| plan.data.train),
            workers: self.plan().map_or(0, |plan| plan.topology().workers()),
            chosen: self.plan().map_or_else(BoundedVec::default, |plan| plan.chosen.clone()),
            succeeds: self.plan().and_then(|plan| plan.succeeds),
            successor: self.backs_off().then(|| self.run.successor()),
            outcome: match &self.state {
                State::Ended(ended) => Some(ended.outcome.clone()),
                _ => None,
            },
            waiting: self.waiting(now, limits).into(),
        }
    }

    /// Stops the run early. If there are several reasons, the first in the order of [`StopReason`] wins, so all nodes
    /// keep the same.
    pub(super) fn stop(&mut self, reason: StopReason, scope: &mut Scope<'_>) {
        if self.is_over() || self.stop.is_some_and(|known| known <= reason) {
            return;
        }
        tracing::info!(event = "run_stopping", ?reason, "the run is asked to end early");
        self.news = true;
        if self.stop.replace(reason).is_none() {
            self.stop_workers(scope);
        }
    }

    /// Orders workers to make no further steps. A worker that has measured weights with which the run is to end waits
    /// until it is told to restore them.
    pub(super) fn stop_workers(&mut self, scope: &mut Scope<'_>) {
        if let Some(exchanging) = self.exchanging_mut() {
            exchanging.stopped = true;
            let stands_by = exchanging.stands_by;
            scope.order(ExchangeOrder::StopWorkers { stands_by });
        }
    }

    /// Takes this node out of a run that goes on without it.
    pub(super) fn withdraw(&mut self, reason: Excluded, scope: &mut Scope<'_>) {
        tracing::warn!(event = "run_withdrawn", %reason, "this node takes no part in the run");
        self.members.own.withdrawn = true;
        self.end(Err(reason.into()), scope);
    }

    /// Ends the run on this node because all pipeline stages have their nodes: this node is spare. It may join when one
    /// is lost.
    pub(super) fn stand_aside(&mut self, scope: &mut Scope<'_>) {
        let reason = RunFailure::Spare;
        tracing::info!(event = "node_spare", "{reason}");
        self.end(Err(reason), scope);
    }

    pub(super) fn fail(&mut self, reason: RunFailure, scope: &mut Scope<'_>) {
        if !self.is_over() {
            tracing::error!(target: NEWS, event = "run_failed", %reason, "the run has failed");
            self.end(Err(reason), scope);
        }
    }

    pub(super) fn end(&mut self, outcome: Result<Box<RunResult>, RunFailure>, scope: &mut Scope<'_>) {
        let plan = self.plan().cloned();
        self.members.own.ended = true;
        let at = scope.now;
        self.state = State::Ended(EndedRun { at, outcome, plan });
        self.news = true;
        scope.effects.push(RunEffect::Close);
        scope
            .effects
            .extend(scope.workers.iter().map(|&worker| RunEffect::Dismiss(worker)));
    }

    /// Replaces the phase of the run on this node with the one that `change` makes of it.
    pub(super) fn change_state(&mut self, change: impl FnOnce(State) -> State) {
        // Placeholder while `change` has the state; it is never observed.
        let place = State::Ended(EndedRun {
            at: Duration::ZERO,
            outcome: Err(RunFailure::Stopped),
            plan: None,
        });
        self.state = change(std::mem::replace(&mut self.state, place));
    }

    /// Sends the exchange the liveness of the participants if it has changed, and logs which of them are lost or back.
    pub(super) fn tell_standing(&mut self, scope: &mut Scope<'_>) {
        if self.exchanging().is_none() {
            return;
        }
        let liveness = Liveness {
            live: self.members.waited_for(scope.now, scope.limits),
            silent: self.members.silent(scope.now, scope.limits),
            gone: self.members.gone(),
        };
        if liveness != self.sent_liveness {
            // At the start all participants are live, which needs no log line.
            let first = self.sent_liveness.live.is_empty();
            for node in liveness
                .live
                .symmetric_difference(&self.sent_liveness.live)
                .filter(|_| !first)
            {
                let name = self.name(*node);
                if liveness.live.contains(node) {
                    tracing::info!(
                        event = "participant_present",
                        peer = name,
                        "a participant is live: the end of the run waits for it"
                    );
                } else if matches!(self.state, State::Finishing(..)) {
                    // All have agreed on the batches: a participant may leave now, and nothing is lost.
                    tracing::info!(
                        event = "participant_absent",
                        peer = name,
                        "a participant is given up: the end of the run does not wait for it"
                    );
                } else {
                    tracing::warn!(
                        event = "participant_absent",
                        peer = name,
                        "a participant is given up: the end of the run does not wait for it"
                    );
                }
            }
            self.sent_liveness = liveness.clone();
            self.news = true;
            scope.order(ExchangeOrder::Liveness(liveness));
        }
    }

    pub(super) fn name(&self, node: NodeId) -> String {
        let participant = self.plan().and_then(|plan| plan.participant(node));
        participant.map_or_else(|| node.to_string(), |participant| participant.name.clone())
    }

    /// Advances the run as far as possible. It looks at the present state rather than at the last event, so a missed
    /// event cannot hold a run up.
    pub(super) fn advance(&mut self, scope: &mut Scope<'_>) {
        loop {
            let phase = self.phase();
            self.ask_workers(scope);
            self.tell_standing(scope);
            match self.state {
                State::Preparing(_) => self.prepare(scope),
                State::Opening { since, .. } => {
                    if scope.now.saturating_sub(since) > scope.limits.begin {
                        self.withdraw(Excluded::CheckpointUnread, scope);
                    }
                }
                State::Training(_) | State::Settling(..) if self.is_replaced(scope) => {
                    self.withdraw(Excluded::Replaced, scope);
                }
                State::Training(_) => self.train(scope),
                State::Settling(..) => self.settle(scope),
                State::Finishing(..) => self.finish(scope),
                State::Ended(_) => {}
            }
            if self.phase() == phase {
                break;
            }
        }
        self.say_waiting(scope);
    }

    /// Logs, once, what the run waits for if that has stayed the same for longer than [`RunLimits::say_after`].
    fn say_waiting(&mut self, scope: &Scope<'_>) {
        let waiting = self.waiting(scope.now, scope.limits);
        if !waiting::is_the_same(&self.waits.0, &waiting) {
            self.waits = (waiting, scope.now, false);
        } else if !self.waits.2
            && !waiting.is_empty()
            && scope.now.saturating_sub(self.waits.1) > scope.limits.say_after
        {
            self.waits.2 = true;
            for one in &waiting {
                tracing::info!(event = "run_waiting", phase = self.phase().text(), "waiting for {one}");
            }
        }
    }
}
