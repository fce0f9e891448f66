//! Getting ready: workers open the data, this node works out what it can offer, and the coordinator hears of it.

use protocol::ids::NodeId;
use protocol::reasons::{Excluded, RunFailure};
use protocol::wire::control::{ControlMessage, Offer};
use protocol::wire::run_plan::RunPlan;

use super::active::{ActiveRun, Scope, State};
use super::event::RunEffect;
use super::guests::as_guest;
use super::leaving::Leaving;
use super::states::OfferState;
use crate::log_context::NEWS;
use crate::planted::{Bug, planted};

impl ActiveRun {
    /// Asks workers to open the data: in the beginning all, and later those that take the place of others. At the end
    /// one is needed to save the model.
    pub(super) fn ask_workers(&mut self, scope: &mut Scope<'_>) {
        if self.leaving != Leaving::No {
            return;
        }
        for &worker in scope.workers {
            let wanted = match &mut self.state {
                State::Preparing(preparing) => preparing.ask_if_wanted(worker),
                State::Training(exchanging) | State::Settling(exchanging, _) | State::Finishing(exchanging, _) => {
                    exchanging.ask_if_wanted(worker)
                }
                State::Opening { .. } | State::Ended(_) => false,
            };
            if wanted {
                let (run, job) = (self.run, self.job.clone());
                scope.effects.push(RunEffect::Prepare { worker, run, job });
            }
        }
    }

    /// Goes on as far as it can: asks for the offer when workers have answered, tells it, begins when that is heard of.
    pub(super) fn prepare(&mut self, scope: &mut Scope<'_>) {
        let State::Preparing(preparing) = &mut self.state else {
            return;
        };
        let since = scope.now.saturating_sub(preparing.since);
        if self.stop.is_some() && self.coordinator == scope.me.id && !preparing.is_guest() {
            return self.fail(RunFailure::Stopped, scope);
        }
        let orphaned = self
            .members
            .is_lost_for(self.coordinator, scope.now, scope.limits.orphaned, scope.limits);
        if orphaned && !preparing.is_guest() {
            return self.fail(RunFailure::CoordinatorLost, scope);
        }
        if since > scope.limits.begin {
            return self.fail(RunFailure::NotBegun, scope);
        }
        let attaching = since < scope.limits.workers_attach && preparing.workers.len() < scope.workers_wanted;
        let asked = preparing.workers.values().any(Option::is_none);
        if !matches!(preparing.offer, OfferState::None) || attaching || asked {
            return;
        }
        match preparing.answer() {
            Ok(data) => {
                preparing.offer = OfferState::Asked;
                let workers = preparing.workers.len();
                let (run, job) = (self.run, self.job.clone());
                scope.effects.push(RunEffect::Offer {
                    run,
                    job,
                    data,
                    workers,
                });
            }
            Err(reason) => self.offered(Err(reason), scope),
        }
    }

    /// What this node has answered to the prepare, if it has.
    pub(super) fn answer(&self) -> Option<Result<Offer, Excluded>> {
        let State::Preparing(preparing) = &self.state else {
            return None;
        };
        match &preparing.offer {
            OfferState::Made(offer) => Some(Ok(offer.clone())),
            OfferState::Refused(reason) => Some(Err(reason.clone())),
            OfferState::None | OfferState::Asked => None,
        }
    }

    /// Whether what this node offers is being worked out.
    pub(super) fn is_offering(&self) -> bool {
        matches!(&self.state, State::Preparing(preparing) if matches!(preparing.offer, OfferState::Asked))
    }

    /// What this node can offer was worked out. What comes of an earlier attempt at this run is nothing to a later one,
    /// whose workers are still at it.
    pub(super) fn worked_out(&mut self, offer: Result<Offer, Excluded>, scope: &mut Scope<'_>) {
        if self.is_offering() {
            self.offered(offer, scope);
        }
    }

    /// What this node can offer is known: the coordinator is told, or the run that had begun is joined.
    pub(super) fn offered(&mut self, offer: Result<Offer, Excluded>, scope: &mut Scope<'_>) {
        let State::Preparing(preparing) = &mut self.state else {
            return;
        };
        preparing.offer = match &offer {
            Ok(offer) => OfferState::Made(offer.clone()),
            Err(reason) => OfferState::Refused(reason.clone()),
        };
        match (preparing.joins.take(), offer) {
            (None, answer) => {
                let (run, from, to) = (self.run, scope.me.id, self.coordinator);
                scope.effects.push(RunEffect::Send {
                    to,
                    message: ControlMessage::Answer { run, from, answer },
                });
            }
            (Some(plan), Ok(_)) => self.begins(plan, scope),
            (Some(_), Err(reason)) => self.withdraw(reason, scope),
        }
    }

    /// Hears that the run begins, or has begun: this node is among its participants, or becomes a guest.
    pub(super) fn begins(&mut self, mut plan: RunPlan, scope: &mut Scope<'_>) {
        if planted(Bug::BegunTwice) && matches!(self.state, State::Training(_)) {
            let (run, plan) = (self.run, Box::new(plan));
            scope.effects.push(RunEffect::Open { run, plan });
            return;
        }
        let State::Preparing(preparing) = &mut self.state else {
            return;
        };
        let workers = preparing.workers.len();
        match &preparing.offer {
            OfferState::Made(offer) => {
                if plan.participant(scope.me.id).is_none() {
                    if offer.data != plan.data {
                        return self.withdraw(Excluded::other_data(&plan.job), scope);
                    }
                    if offer.digest != plan.first {
                        return self.withdraw(Excluded::other_weights(&plan.job), scope);
                    }
                    let Some(guest) = as_guest((&self.members, self.coordinator), &plan, scope, workers) else {
                        return self.stand_aside(scope);
                    };
                    plan.admit(guest);
                }
            }
            OfferState::Refused(_) => return self.withdraw(Excluded::NotPrepared, scope),
            // Its workers are still at it. The newest plan of who takes part counts.
            OfferState::None | OfferState::Asked => {
                if let Some(joins) = &mut preparing.joins {
                    *joins = plan;
                } else if plan.participant(scope.me.id).is_some() {
                    return self.withdraw(Excluded::BegunWithout, scope);
                } else {
                    preparing.joins = Some(plan);
                }
                return;
            }
        }
        let ready = preparing.workers.keys().copied().collect();
        let participants: Vec<NodeId> = plan.participants.iter().map(|one| one.node).collect();
        self.members.admit(participants.iter().copied(), scope.now);
        self.members.leave_the_succeeded(&plan, scope.now, scope.limits);
        let others = participants
            .into_iter()
            .filter(|&node| !plan.topology().same_slice(scope.me.id, node));
        self.members.hold_others(others);
        let nodes = plan
            .participants
            .iter()
            .filter(|one| !plan.is_succeeded(one.node))
            .count();
        tracing::info!(target: NEWS, event = "run_started", nodes, data = %self.job.data, "a run begins");
        // What was left open is decided.
        self.job.clone_from(&plan.job);
        self.news = true;
        let plan = Box::new(plan);
        scope.effects.push(RunEffect::Open {
            run: self.run,
            plan: plan.clone(),
        });
        self.state = State::Opening {
            plan,
            ready,
            since: scope.now,
        };
    }
}
