//! Preparation of a run: workers open the data, this node works out its offer, and the coordinator gets it.

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
    /// Asks workers to open the data: all of them at the beginning, later those that replace others, and one at the end
    /// to save the model.
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

    /// Advances this node's preparation for a run as far as possible: asks for its offer (the data and resources that
    /// it would contribute) once workers have answered, or gives up the run.
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

    /// Returns this node's answer to the request to prepare for a run, if it has one.
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

    /// Returns true while this node's offer to the run (the data and resources that it would contribute) is being
    /// worked out.
    pub(super) fn is_offering(&self) -> bool {
        matches!(&self.state, State::Preparing(preparing) if matches!(preparing.offer, OfferState::Asked))
    }

    /// Takes this node's offer to the run (the data and resources that it would contribute) once it is worked out. The
    /// offer of an earlier attempt at this run is dropped if the workers are still busy with a later one.
    pub(super) fn worked_out(&mut self, offer: Result<Offer, Excluded>, scope: &mut Scope<'_>) {
        if self.is_offering() {
            self.offered(offer, scope);
        }
    }

    /// Records this node's final offer to the run (the data and resources that it would contribute): answers the
    /// coordinator, or joins the run if the run has begun already.
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

    /// Handles the plan of a run that begins, or has begun: this node is among its participants, or joins it late as a
    /// guest.
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
                        let why = Excluded::other_data(&plan.job, &offer.data, &plan.data);
                        return self.withdraw(why, scope);
                    }
                    // A guest takes a snapshot, whatever weights it has drawn.
                    if !offer.has_weights_for(&plan.job, plan.first, plan.weights) {
                        let why = Excluded::other_weights(&plan.job, offer.weights, plan.weights);
                        return self.withdraw(why, scope);
                    }
                    let Some(guest) = as_guest((&self.members, self.coordinator), &plan, scope, workers) else {
                        return self.stand_aside(scope);
                    };
                    plan.admit(guest);
                }
            }
            OfferState::Refused(_) => return self.withdraw(Excluded::NotPrepared, scope),
            // This node's workers are still busy. The newest plan counts.
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
        if plan.participant(scope.me.id).is_some_and(|one| one.lacks_first_weights) {
            tracing::info!(
                target: NEWS, event = "first_weights_differ",
                "this node drew other first weights than the run's: it takes a snapshot before its workers begin"
            );
        }
        // The plan's job also has the settings that were left open.
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
