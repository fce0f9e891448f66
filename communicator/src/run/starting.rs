//! Starting runs: clients' requests, the search for checkpoints, the prepare step, the decision, and calling a run off.

use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::job::{Job, JobDraft};
use protocol::reasons::{Excluded, Refusal, RunFailure};
use protocol::wire::control::{ControlMessage, FoundCheckpoint, NodeInfo, Offer, Reply, Request, RunOrder};
use protocol::wire::run_beat::StopReason;
use protocol::wire::topology::Topology;

use super::active::{ActiveRun, State};
use super::checkpoint_search::CheckpointSearch;
use super::coordination::{Coordination, Decision, ResumePoint};
use super::core::{Coordinating, RunCore};
use super::event::{RunEffect, Ticket};
use crate::log_context::NEWS;
use crate::planted::{Bug, planted};

/// Time between a divergence and the retry, in which nodes exchange state messages a few times, so that all have heard
/// that the diverged run is over.
const BACK_OFF_AFTER: Duration = Duration::from_secs(2);

impl RunCore {
    /// Refuses a request that needs an idle node if this node is busy or about to end. Returns true if it refused.
    fn refuse_if_busy(&self, ticket: Ticket, effects: &mut Vec<RunEffect>) -> bool {
        let busy = self.current.as_ref().filter(|run| !run.is_over());
        let run = busy
            .map(|run| run.run)
            .or(self.search.as_ref().map(|search| search.run));
        if self.leaving {
            let node = self.me.name.as_str().into();
            effects.push(RunEffect::Reply(ticket, Refusal::AboutToEnd(node).into()));
            return true;
        }
        if let Some(run) = run {
            let node = self.me.name.as_str().into();
            effects.push(RunEffect::Reply(ticket, Refusal::Busy { node, run }.into()));
        }
        run.is_some()
    }

    fn alive(&self) -> Vec<NodeInfo> {
        let alive = self.peers.values().filter(|info| !self.away.contains(&info.id));
        alive.cloned().collect()
    }

    /// Starts a run: asks all living nodes to prepare for it.
    pub(super) fn start(
        &mut self,
        run: RunId,
        going: (Box<Job>, ResumePoint),
        allow_partial: bool,
        ticket: Ticket,
        now: Duration,
        effects: &mut Vec<RunEffect>,
    ) {
        if self.refuse_if_busy(ticket, effects) {
            return;
        }
        let (job, going_on) = going;
        let invited = self.alive();
        let all = invited.iter().cloned().chain([self.me.clone()]);
        let coordination = Coordination::new(job.clone(), going_on, allow_partial, all);
        self.coordinating = Some(Coordinating {
            run,
            coordination,
            ticket,
            asked: now,
        });
        let coordinator = self.me.id;
        ask_to_prepare(run, coordinator, &job, invited.iter().map(|peer| peer.id), effects);
        self.get_ready(run, coordinator, job, now, effects);
    }

    /// Advances the starts of runs that this node coordinates as far as possible.
    pub(super) fn coordinate(&mut self, now: Duration, effects: &mut Vec<RunEffect>) {
        self.try_resume(now, effects);
        self.back_off(now, effects);
        self.decide(now, effects);
        self.call_off(effects);
    }

    /// Trains a diverged run again at half the learning rate if this node coordinated it, once all others have heard
    /// that it is over.
    pub(super) fn back_off(&mut self, now: Duration, effects: &mut Vec<RunEffect>) {
        let Some(run) = self
            .current
            .as_ref()
            .filter(|run| run.coordinator == self.me.id && run.backs_off())
        else {
            return;
        };
        let ended = run.ended_for(now);
        if ended < BACK_OFF_AFTER || self.coordinating.is_some() || self.search.is_some() {
            return;
        }
        let job = Box::new(run.job.backed_off());
        let going_on = ResumePoint {
            succeeds: Some(run.run),
            ..ResumePoint::default()
        };
        let successor = run.run.successor();
        tracing::warn!(
            target: NEWS, event = "run_retried", predecessor = %run.run, %successor, optimiser = %job.optimiser,
            "a run has diverged; its successor trains the job again at a lower learning rate"
        );
        // A node that could not take part is not waited for a second time.
        self.start(successor, (job, going_on), true, Ticket::NOBODY, now, effects);
    }

    /// Asks the nodes that have not answered the request to prepare once more: the question or the answer may have been
    /// lost.
    pub(super) fn ask_again(&mut self, now: Duration, effects: &mut Vec<RunEffect>) {
        let (me, every) = (self.me.id, self.limits.ask_again);
        let Some(one) = self
            .coordinating
            .as_mut()
            .filter(|one| now.saturating_sub(one.asked) > every)
        else {
            return;
        };
        one.asked = now;
        let late = one.coordination.unanswered().filter(|&node| node != me);
        ask_to_prepare(one.run, me, one.coordination.job(), late, effects);
    }

    /// Asks all living nodes which checkpoint they have of an earlier run.
    pub(super) fn resume(
        &mut self,
        run: RunId,
        (resumes, changes): (RunId, Box<JobDraft>),
        (allow_partial, ticket): (bool, Ticket),
        now: Duration,
        effects: &mut Vec<RunEffect>,
    ) {
        if self.refuse_if_busy(ticket, effects) {
            return;
        }
        let coordinator = self.me.id;
        let asked: Vec<NodeId> = self.alive().iter().map(|info| info.id).collect();
        effects.extend(asked.iter().map(|&to| RunEffect::Send {
            to,
            message: ControlMessage::Find {
                run,
                coordinator,
                resumes,
            },
        }));
        effects.push(RunEffect::LookUp { run, resumes });
        let asked = asked.into_iter().chain([coordinator]).collect();
        self.search = Some(CheckpointSearch::new(
            (run, resumes),
            changes,
            asked,
            (allow_partial, ticket),
            now,
        ));
    }

    /// Handles the checkpoint that was found on this node, for its own search or for another coordinator's.
    pub(super) fn looked_up(&mut self, run: RunId, found: Option<Box<FoundCheckpoint>>, effects: &mut Vec<RunEffect>) {
        let me = self.me.id;
        if let Some(search) = self.search.as_mut().filter(|search| search.run == run) {
            search.answer(me, found.map(|found| *found));
        } else if let Some(to) = self.asked_by.remove(&run) {
            let message = ControlMessage::FoundCheckpoint { run, from: me, found };
            effects.push(RunEffect::Send { to, message });
        }
    }

    /// Starts the resumed run from the furthest checkpoint once all asked nodes have answered.
    pub(super) fn try_resume(&mut self, now: Duration, effects: &mut Vec<RunEffect>) {
        let limit = self.limits.search;
        let Some(search) = self.search.take_if(|search| search.is_over(now, limit)) else {
            return;
        };
        let (job, going_on) = match search.result() {
            Ok(result) => result,
            Err(reasons) => return effects.push(RunEffect::Reply(search.ticket, Reply::Refused(reasons.into()))),
        };
        let samples = going_on.checkpoints.first().map_or(0, |resumed| resumed.samples);
        tracing::info!(event = "run_resumed", resumes = %search.resumes, samples, "resuming a run from its checkpoint");
        self.start(
            search.run,
            (job, going_on),
            search.allow_partial,
            search.ticket,
            now,
            effects,
        );
    }

    /// Orders every node to write a checkpoint.
    pub(super) fn checkpoint_all(&mut self, ticket: Ticket, now: Duration, effects: &mut Vec<RunEffect>) {
        let training = self
            .current
            .as_ref()
            .filter(|run| matches!(run.state, State::Training(_)));
        let answer = match training.map(|run| run.run) {
            Some(run) => {
                self.with_run(now, effects, ActiveRun::checkpoint);
                let order = RunOrder::Checkpoint;
                effects.push(RunEffect::Broadcast(ControlMessage::Order { run, order }));
                Reply::Ordered(run)
            }
            None => Refusal::NothingToCheckpoint.into(),
        };
        effects.push(RunEffect::Reply(ticket, answer));
    }

    /// Handles a client's request to end the run. The coordinator calls off a run that is being prepared; a run that
    /// has begun, here or elsewhere, keeps what it has learned.
    pub(super) fn stop(&mut self, ticket: Ticket, now: Duration, effects: &mut Vec<RunEffect>) {
        let current = self.current.as_ref().filter(|run| !run.is_over());
        let prepared = current.is_some_and(ActiveRun::is_being_prepared);
        let current = current.map(|run| run.run);
        // A run that this node was asked for comes before runs that it only knows of.
        if current.is_none()
            && let Some(search) = self.search.take()
        {
            effects.push(RunEffect::Reply(search.ticket, Reply::Failed(RunFailure::Stopped)));
            return effects.push(RunEffect::Reply(ticket, Reply::CalledOff(search.run)));
        }
        let Some(name) = current.or_else(|| self.elsewhere.values().next().copied()) else {
            return effects.push(RunEffect::Reply(ticket, Refusal::NothingToStop.into()));
        };
        let answer = if prepared {
            Reply::CalledOff(name)
        } else {
            Reply::Ordered(name)
        };
        let (run, order) = (name, RunOrder::Stop);
        effects.push(RunEffect::Broadcast(ControlMessage::Order { run, order }));
        self.stopped(name, now, effects);
        effects.push(RunEffect::Reply(ticket, answer));
    }

    /// Forwards a stop to the nodes that take part in the run, if this node does not: they may not reach each other.
    fn hand_on_stop(&mut self, from: NodeId, run: RunId, now: Duration, effects: &mut Vec<RunEffect>) {
        let takes_part = self
            .current
            .as_ref()
            .is_some_and(|one| one.run == run && !one.is_over());
        // Two nodes with outdated knowledge of each other's run would forward the stop to each other for ever.
        let just_now = |at: Duration| now.saturating_sub(at) < self.limits.beat_every;
        if takes_part
            || self
                .handed_on
                .is_some_and(|(stopped, at)| stopped == run && just_now(at))
        {
            return;
        }
        self.handed_on = Some((run, now));
        let others = self
            .elsewhere
            .iter()
            .filter(|&(&node, &there)| there == run && node != from);
        effects.extend(others.map(|(&to, _)| RunEffect::Send {
            to,
            message: ControlMessage::Order {
                run,
                order: RunOrder::Stop,
            },
        }));
    }

    /// Ends this run because a client, here or at another node, asks for it.
    fn stopped(&mut self, name: RunId, now: Duration, effects: &mut Vec<RunEffect>) {
        let me = self.me.id;
        let mut aborts = false;
        self.with_named(name, now, effects, |run, scope| {
            aborts = run.is_being_prepared() && run.coordinator == me
                || planted(Bug::StopAtGuestAborts) && matches!(run.state, State::Preparing(_));
            if aborts {
                run.fail(RunFailure::Stopped, scope);
            } else {
                // The coordinator may hear of this over other nodes only.
                run.stop(StopReason::Asked, scope);
            }
        });
        if aborts {
            let reason = RunFailure::Stopped;
            effects.push(RunEffect::Broadcast(ControlMessage::Abort { run: name, reason }));
        }
    }

    /// Handles a client's request about runs.
    pub(super) fn request(
        &mut self,
        ticket: Ticket,
        run: RunId,
        request: Request,
        now: Duration,
        effects: &mut Vec<RunEffect>,
    ) {
        match request {
            Request::StartTraining { job, allow_partial } => {
                self.start(run, (job, ResumePoint::default()), allow_partial, ticket, now, effects);
            }
            Request::Resume {
                run: resumes,
                changes,
                allow_partial,
            } => self.resume(run, (resumes, changes), (allow_partial, ticket), now, effects),
            Request::Order(RunOrder::Checkpoint) => self.checkpoint_all(ticket, now, effects),
            Request::Order(RunOrder::Stop) => self.stop(ticket, now, effects),
            // Other actors answer these.
            Request::Nodes | Request::Status | Request::InspectData(_) | Request::Stats { .. } => {}
        }
    }

    /// Handles another node's control message about runs.
    pub(super) fn message(
        &mut self,
        from: NodeId,
        message: ControlMessage,
        now: Duration,
        effects: &mut Vec<RunEffect>,
    ) {
        match message {
            ControlMessage::Prepare { run, job, .. } => self.get_ready(run, from, job, now, effects),
            ControlMessage::Answer { run, answer, .. } => {
                if let Some(one) = self.coordinating.as_mut().filter(|one| one.run == run) {
                    one.coordination.answer(from, answer);
                }
            }
            ControlMessage::Abort { run, reason } => self.with_named(run, now, effects, |run, scope| {
                if run.is_being_prepared() && run.coordinator == from || planted(Bug::StopAtGuestAborts) {
                    run.fail(reason, scope);
                }
            }),
            ControlMessage::Order { run, order } => match order {
                RunOrder::Checkpoint => self.with_named(run, now, effects, ActiveRun::checkpoint),
                RunOrder::Stop if planted(Bug::LostStop) => {}
                RunOrder::Stop => {
                    self.stopped(run, now, effects);
                    self.hand_on_stop(from, run, now, effects);
                }
            },
            ControlMessage::Find { run, resumes, .. } => {
                self.asked_by.insert(run, from);
                effects.push(RunEffect::LookUp { run, resumes });
            }
            ControlMessage::FoundCheckpoint { run, found, .. } => {
                if let Some(search) = self.search.as_mut().filter(|search| search.run == run) {
                    search.answer(from, found.map(|found| *found));
                }
            }
            // These concern membership and records.
            ControlMessage::Beat(_)
            | ControlMessage::Echo { .. }
            | ControlMessage::Stats(_)
            | ControlMessage::Leaving(_)
            | ControlMessage::Unwelcome(_) => {}
        }
    }

    /// Prepares for a run, unless this node is in another one.
    fn get_ready(
        &mut self,
        run: RunId,
        coordinator: NodeId,
        job: Box<Job>,
        now: Duration,
        effects: &mut Vec<RunEffect>,
    ) {
        if self.leaving {
            self.answer(coordinator, run, Err(Excluded::AboutToEnd), effects);
            return;
        }
        if self.has_ended(run) {
            // Others may have been told of that end, and would not take this node back.
            self.answer(coordinator, run, Err(Excluded::AlreadyEnded), effects);
            return;
        }
        if let Some(busy) = self.current.as_ref().filter(|run| !run.is_over()) {
            if busy.run == run {
                if let Some(answer) = busy.answer() {
                    self.answer(coordinator, run, answer, effects);
                }
                return;
            }
            // Of two runs that are being prepared at the same time, the one with the lower id wins on every node.
            let (beaten, by) = if busy.is_being_prepared() && run < busy.run {
                (Some((busy.run, busy.coordinator)), run)
            } else {
                (None, busy.run)
            };
            let loser = beaten.unwrap_or((run, coordinator));
            self.answer(loser.1, loser.0, Err(Excluded::Busy(by)), effects);
            if beaten.is_none() {
                return;
            }
            let reason = RunFailure::Overtaken(run);
            self.with_run(now, effects, |run, scope| run.fail(reason, scope));
            self.call_off(effects);
        }
        let entered = self.preparing(run, coordinator, job, None, now);
        self.enter(entered, now);
    }

    /// Answers a request to prepare for a run: by a message to the coordinator or, if this node itself coordinates the
    /// run's start, directly.
    fn answer(
        &mut self,
        coordinator: NodeId,
        run: RunId,
        answer: Result<Offer, Excluded>,
        effects: &mut Vec<RunEffect>,
    ) {
        let from = self.me.id;
        if coordinator == from {
            if let Some(one) = self.coordinating.as_mut().filter(|one| one.run == run) {
                one.coordination.answer(from, answer);
            }
        } else {
            let message = ControlMessage::Answer { run, from, answer };
            effects.push(RunEffect::Send {
                to: coordinator,
                message,
            });
        }
    }

    /// Begins the run that this node coordinates, or calls it off, once all invited nodes have answered.
    pub(super) fn decide(&mut self, now: Duration, effects: &mut Vec<RunEffect>) {
        let Some(decision) = self
            .coordinating
            .as_ref()
            .and_then(|one| one.coordination.decide(self.me.id))
        else {
            return;
        };
        let Some(Coordinating { run: name, ticket, .. }) = self.coordinating.take() else {
            return;
        };
        let reasons = match decision {
            Decision::Begin(plan) if plan.participant(self.me.id).is_some() => {
                let topology = plan.topology();
                if let Topology::Pipelined(_) = topology {
                    let (stages, pipelines) = (topology.stages(), topology.workers());
                    tracing::info!(
                        target: NEWS, event = "pipelines_formed", stages, pipelines,
                        "the model is cut into pipeline stages, one for each node"
                    );
                }
                self.with_named(name, now, effects, |run, scope| run.begins(*plan, scope));
                effects.push(RunEffect::Reply(ticket, Reply::Started(name)));
                return;
            }
            Decision::Begin(plan) => {
                let others = plan.participants.iter().map(|one| one.name.as_str().into());
                vec![Refusal::AskedNode {
                    node: self.me.name.as_str().into(),
                    others: others.collect(),
                }]
            }
            Decision::Refuse(reasons) => reasons,
        };
        let reason = RunFailure::refused(&reasons);
        effects.push(RunEffect::Reply(ticket, Reply::Refused(reasons.into())));
        effects.push(RunEffect::Broadcast(ControlMessage::Abort {
            run: name,
            reason: reason.clone(),
        }));
        self.with_named(name, now, effects, |run, scope| run.fail(reason, scope));
    }

    /// Tells the client that started a run that the run failed before it began.
    pub(super) fn call_off(&mut self, effects: &mut Vec<RunEffect>) {
        let Some(one) = &self.coordinating else {
            return;
        };
        let current = self.current.as_ref().filter(|current| current.run == one.run);
        let reason = match current {
            Some(run) => run.failure().cloned(),
            None => Some(RunFailure::Replaced),
        };
        if let Some(reason) = reason
            && let Some(one) = self.coordinating.take()
        {
            effects.push(RunEffect::Reply(one.ticket, Reply::Failed(reason)));
        }
    }
}

/// Asks nodes to prepare for a run.
fn ask_to_prepare(
    run: RunId,
    coordinator: NodeId,
    job: &Job,
    nodes: impl Iterator<Item = NodeId>,
    effects: &mut Vec<RunEffect>,
) {
    effects.extend(nodes.map(|to| RunEffect::Send {
        to,
        message: ControlMessage::Prepare {
            run,
            coordinator,
            job: Box::new(job.clone()),
        },
    }));
}
