//! Training phase of a run: workers take seats, the model is evaluated, checkpoints are written, and the run is stopped
//! or completed.

use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::job::Keep;
use protocol::reasons::{Excluded, RunFailure};
use protocol::wire::run_beat::{GivenUp, StopReason};
use protocol::wire::run_plan::RunPlan;

use super::active::{ActiveRun, Scope, State};
use super::event::ExchangeOrder;
use super::states::{Exchanging, Settling};
use crate::planted::{Bug, planted};

impl ActiveRun {
    /// Starts training once the exchange of batches runs, or withdraws this node if the exchange could not start.
    pub(super) fn opened(&mut self, opened: Result<(), Excluded>, scope: &mut Scope<'_>) {
        let State::Opening { plan, ready, .. } = &self.state else {
            return;
        };
        if let Err(reason) = opened {
            return self.withdraw(reason, scope);
        }
        let ready = ready.intersection(scope.workers).copied().collect();
        let mut exchanging = Exchanging::new((**plan).clone(), scope.me.id, ready, scope.now);
        exchanging.evaluate_at = plan.evaluation_interval();
        self.state = State::Training(Box::new(exchanging));
        self.news = true;
        if self.stop.is_some() {
            self.stop_workers(scope);
        }
    }

    /// Adds guests (participants that came late) that another node knows and this one does not. A node that has agreed
    /// on how to end takes no more.
    pub(super) fn admit(&mut self, theirs: &RunPlan, scope: &mut Scope<'_>) {
        if self.members.own.frozen || matches!(self.state, State::Finishing(..)) {
            return;
        }
        let now = scope.now;
        let news: Vec<_> = match &mut self.state {
            State::Training(exchanging) | State::Settling(exchanging, _) => {
                let guests = theirs.participants.iter().filter(|one| one.guest);
                let news = guests
                    .filter(|guest| exchanging.plan.admit((*guest).clone()))
                    .cloned()
                    .collect();
                self.news |= self.members.leave_the_succeeded(&exchanging.plan, now, scope.limits);
                news
            }
            // The exchange starts with the participants known now; later beats name the others again.
            _ => return,
        };
        for guest in news {
            tracing::info!(event = "participant_joined", peer = guest.name, "a node joins the run");
            let node = guest.node;
            self.members.admit(std::iter::once(node), now);
            self.news = true;
            scope.order(ExchangeOrder::Joined(guest));
            if let Some(plan) = self.plan() {
                let holds_others = !plan.topology().same_slice(scope.me.id, node);
                self.members.hold_others(holds_others.then_some(node).into_iter());
            }
        }
    }

    /// Returns true if another node has taken over this node's pipeline stage, perhaps before this node has begun.
    pub(super) fn is_replaced(&self, scope: &Scope<'_>) -> bool {
        let is_replaced = self.plan().is_some_and(|plan| plan.topology().is_replaced(scope.me.id));
        is_replaced && !planted(Bug::VacancyFilledTwice)
    }

    /// Gives up the earlier processes of nodes that were started again.
    pub(super) fn leave_the_succeeded(&mut self, scope: &Scope<'_>) {
        if let State::Training(exchanging) | State::Settling(exchanging, _) | State::Finishing(exchanging, _) =
            &self.state
        {
            let plan = &exchanging.plan;
            self.news |= self.members.leave_the_succeeded(plan, scope.now, scope.limits);
        }
    }

    /// Advances training as far as possible: gives workers their places, has the model evaluated, writes checkpoints,
    /// and goes on to the agreement on the end of the run when training is over.
    pub(super) fn train(&mut self, scope: &mut Scope<'_>) {
        if self.go_on_leaving(scope) {
            return;
        }
        self.look_for_a_stall(scope);
        if self.members.is_left_behind(scope.now, scope.limits) {
            self.stop(StopReason::OthersEnded, scope);
        }
        let is_led_no_more = self.leaders_have_ended(scope);
        let State::Training(exchanging) = &mut self.state else {
            return;
        };
        let now = scope.now;
        let since = |at: Duration| now.saturating_sub(at);
        if exchanging.stranded.is_some_and(|at| since(at) > scope.limits.stranded) {
            return self.withdraw(Excluded::Stranded, scope);
        }
        let settles = |node: NodeId| self.members.state(node).is_some_and(|state| state.closed);
        let ends = self.stop.is_some() || exchanging.plan.participants.iter().any(|one| settles(one.node));
        if ends && exchanging.is_behind(scope.me.id) {
            return self.withdraw(Excluded::Behind, scope);
        }
        let mut lost = self.members.given_up(now, scope.limits);
        // A node that leaves has kept its stage. If no pipeline is complete without it, this node keeps its own stage
        // of the same moment.
        let left: Vec<_> = lost
            .iter()
            .copied()
            .filter(|&(node, _)| self.members.withdrew(node))
            .collect();
        let is_incomplete = no_pipeline(self.run, exchanging, &left).is_some();
        if is_incomplete && !exchanging.kept_incomplete {
            exchanging.checkpointed = now;
            scope.order(ExchangeOrder::Keep);
        }
        exchanging.kept_incomplete = is_incomplete;
        // Another process may replace one that has ended or left; it is waited for as long as a silent node.
        let may_return = |node, why| why == GivenUp::Silent || self.members.withdrew(node);
        let patience = scope.limits.give_up_after;
        exchanging
            .lost_since
            .retain(|node, _| lost.iter().any(|(one, _)| one == node));
        for &(node, _) in &lost {
            exchanging.lost_since.entry(node).or_insert(now);
        }
        // A node that has left the run may go on to send beats.
        let lost_since = &exchanging.lost_since;
        let is_early = |node| !self.members.is_quiet_for(node, now, patience) && since(lost_since[&node]) <= patience;
        lost.retain(|&(node, why)| !may_return(node, why) || !is_early(node));
        if let Some(reason) = no_pipeline(self.run, exchanging, &lost) {
            return self.fail(reason, scope);
        }
        let waited = exchanging.begins_alike(scope.me.id) && since(exchanging.opened) > scope.limits.links;
        if exchanging.seated.is_none() && (exchanging.progress.ready || waited) {
            exchanging.seated = Some(now);
        }
        let topology = exchanging.plan.topology();
        let needs_all_workers = topology.needs_all_workers();
        let is_complete = if topology.is_led(scope.me.id) {
            is_led_no_more
        } else {
            exchanging.progress.complete
        };
        let ends = self.stop.is_some() || is_complete;
        if exchanging.seated.is_some() && (needs_all_workers || !ends) {
            seat_workers(exchanging, scope);
        }
        let unmanned = needs_all_workers && exchanging.is_unmanned();
        self.news |= self.members.own.unmanned != unmanned;
        self.members.own.unmanned = unmanned;
        let waits_for_seats =
            needs_all_workers && exchanging.seated.is_none() && since(exchanging.opened) < scope.limits.links;
        if ends && !waits_for_seats {
            // Where the best weights are kept, workers wait for this order: one may have measured weights to restore.
            // The order is repeated, since a worker may have taken its seat after the first one.
            if self.job.keep == Keep::Best || needs_all_workers && self.stop.is_some() {
                self.stop_workers(scope);
            }
            return self.begin_to_settle(scope);
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

    /// Returns true if the nodes that choose this node's minibatches (those of the first pipeline stage) have no more
    /// minibatches, or are gone. If all are gone and none had come to its end, returns false: a guest may replace one,
    /// for which [`Self::train`] waits.
    pub(super) fn leaders_have_ended(&self, scope: &Scope<'_>) -> bool {
        let Some(plan) = self.plan() else {
            return false;
        };
        let topology = plan.topology();
        if !topology.is_led(scope.me.id) {
            return false;
        }
        let living = self.members.waited_for(scope.now, scope.limits);
        let nodes = plan.participants.iter().map(|one| one.node);
        let leaders: Vec<NodeId> = nodes.filter(|&node| topology.leads(node)).collect();
        let has_ended = |node: &NodeId| self.members.state(*node).is_some_and(|state| state.closed);
        leaders.iter().any(has_ended) && leaders.iter().filter(|node| living.contains(node)).all(has_ended)
    }

    fn begin_to_settle(&mut self, scope: &Scope<'_>) {
        self.news = true;
        self.change_state(|state| match state {
            State::Training(exchanging) => State::Settling(exchanging, Settling::new(scope.now)),
            other => other,
        });
    }

    /// Writes a checkpoint of this node's replica, together with the state that only the workers have: what they have
    /// learned and not sent (the residual), and the optimiser's state.
    pub(super) fn checkpoint(&mut self, scope: &mut Scope<'_>) {
        if let State::Training(exchanging) = &mut self.state
            && exchanging.seated.is_some()
        {
            exchanging.checkpointed = scope.now;
            scope.order(ExchangeOrder::Checkpoint);
        }
    }

    /// Orders an evaluation if one is due and a worker of this node is to make it: one worker of the whole cluster
    /// evaluates.
    fn evaluate(&mut self, scope: &mut Scope<'_>) {
        let silent = self.members.silent(scope.now, scope.limits);
        let State::Training(exchanging) = &mut self.state else {
            return;
        };
        let plan = &exchanging.plan;
        if plan.topology().evaluates_by_itself() {
            return;
        }
        let interval = plan.evaluation_interval();
        let evaluator = plan.topology().evaluator(|node| !silent.contains(&node));
        let total = plan.data.train * u64::from(plan.job.epochs);
        let samples = exchanging.progress.samples;
        let due = (exchanging.evaluate_at..total).contains(&samples);
        if due && evaluator == Some(scope.me.id) {
            exchanging.evaluate_at = samples + interval;
            scope.order(ExchangeOrder::Evaluate);
        }
    }
}

/// Returns the failure of a run whose model is spread over nodes if every pipeline has a node that is given up.
fn no_pipeline(run: RunId, exchanging: &Exchanging, given_up: &[(NodeId, GivenUp)]) -> Option<RunFailure> {
    let plan = &exchanging.plan;
    let is_given_up = |node| given_up.iter().any(|(other, _)| *other == node);
    if plan.topology().can_go_on_without(is_given_up) {
        return None;
    }
    let missing = plan.participants.iter().filter(|one| is_given_up(one.node));
    Some(RunFailure::NoPipeline {
        missing: missing.map(|one| one.name.as_str().into()).collect(),
        resume: (exchanging.checkpointed > exchanging.opened).then_some(run),
    })
}

/// Gives empty seats (workers' places in the run) to workers that have opened the data.
fn seat_workers(exchanging: &mut Exchanging, scope: &mut Scope<'_>) {
    while let Some((&slot, seat)) = exchanging.seats.iter_mut().find(|(_, seat)| seat.worker.is_none())
        && let Some(worker) = exchanging.ready.pop_first()
    {
        seat.take(worker);
        scope.order(ExchangeOrder::Seat { worker, slot });
    }
}
