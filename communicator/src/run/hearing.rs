//! Messages to a run: from its other participants, and from this node's workers.

use protocol::ids::NodeId;
use protocol::job::Keep;
use protocol::job::data::DataInfo;
use protocol::reasons::{Divergence, Excluded, RunFailure};
use protocol::stats::measured::Evaluation;
use protocol::wire::attach::{FailureCause, FromWorker, Missing};
use protocol::wire::run_beat::{RunBeat, StopReason};

use super::active::{ActiveRun, Scope, State};
use super::event::{ExchangeOrder, RunEffect, WorkerKey};
use crate::planted::{Bug, planted};

/// Number of failures of the user's code without a batch between them after which a node withdraws from the run.
const CODE_FAILURES_MAX: u8 = 3;

impl ActiveRun {
    /// Handles the part of a peer's beat that is about this run: the states of its participants, its plan, and its end.
    pub(super) fn hear_peer(&mut self, from: NodeId, beat: RunBeat, scope: &mut Scope<'_>) {
        if self.is_over() {
            return;
        }
        let speaks = self.plan().is_none_or(|plan| plan.participant(from).is_some());
        for (node, state) in beat.states {
            let direct = node == from;
            if direct || speaks && !planted(Bug::DirectLifeOnly) {
                self.members.hear(node, state, direct, scope.now, scope.limits);
            }
        }
        if let Some(reason) = beat.diverged {
            // A node that takes no part cannot speak for the participants.
            if speaks && self.plan().is_some() {
                self.diverge(reason, scope);
            }
            return;
        }
        let over = self.members.state(from).is_some_and(|state| state.ended);
        if over && beat.plan.is_none() && self.is_being_prepared() && from == self.coordinator {
            return self.fail(RunFailure::Cancelled, scope);
        }
        if let Some(plan) = beat.plan {
            if matches!(self.state, State::Preparing(_)) || planted(Bug::BegunTwice) {
                self.begins(plan, scope);
            } else {
                self.admit(&plan, scope);
            }
        }
        // `OthersEnded` holds only on the node that found it, and where workers have stopped because of that node's
        // batches.
        let is_stopped = self.exchanging_mut().is_some_and(|exchanging| exchanging.stopped);
        if let Some(reason) = beat.stop
            && speaks
            && (reason != StopReason::OthersEnded || is_stopped)
            && !planted(Bug::LostStop)
        {
            self.stop(reason, scope);
        }
    }

    /// Records a worker's evaluation. Stops the run if the evaluation reaches the target, or if too many
    /// evaluations in a row have not lowered the loss.
    fn evaluated(&mut self, worker: WorkerKey, evaluation: Evaluation, scope: &mut Scope<'_>) {
        let keeps_best = self.job.keep == Keep::Best;
        match self.state {
            State::Training(_) => {}
            // All workers have closed: this evaluation of the last weights is compared with the best one.
            State::Settling(..) => return self.course.add(evaluation),
            _ => return,
        }
        let scores = evaluation.scores();
        if self.job.target_accuracy.is_some() && scores.accuracy.is_none() && self.course.evaluations().is_empty() {
            tracing::warn!(
                event = "target_accuracy_unknown",
                "the model reports no accuracy, so the run cannot reach its target accuracy: use --target-loss instead"
            );
        }
        let is_reached = self.job.target_is_reached_by(&scores);
        self.scores = Some(scores);
        if let Some(exchanging) = self.exchanging_mut().filter(|_| is_reached || keeps_best) {
            exchanging.note_measured(worker);
        }
        let is_over = self.patience.note_loss(evaluation.loss, self.job.patience);
        self.course.add(evaluation);
        if is_reached {
            self.stop(StopReason::TargetReached, scope);
        } else if is_over {
            self.stop(StopReason::PatienceOver, scope);
        }
    }

    /// Records that the run has diverged on this node.
    pub(super) fn note_divergence(&mut self, cause: String, scope: &mut Scope<'_>) {
        let divergence = Divergence {
            cause: cause.into(),
            optimiser: self.job.optimiser.to_string().into(),
            calmer: self.job.backed_off().optimiser.to_string().into(),
            successor: self.backs_off_from(true).then(|| self.run.successor()),
        };
        self.diverge(divergence, scope);
    }

    /// Returns true if a diverged run of this job is trained again at a lower learning rate.
    fn backs_off_from(&self, has_diverged: bool) -> bool {
        has_diverged && self.job.back_off && self.plan().is_some_and(|plan| plan.topology().can_back_off())
    }

    /// Returns true if this run has diverged and is trained again at a lower learning rate.
    pub(super) fn backs_off(&self) -> bool {
        self.is_over() && self.backs_off_from(self.diverged.is_some())
    }

    /// Fails the run as diverged: it cannot go on anywhere.
    pub(super) fn diverge(&mut self, reason: Divergence, scope: &mut Scope<'_>) {
        if !self.is_over() {
            self.diverged = Some(reason.clone());
            self.fail(reason.into(), scope);
        }
    }

    pub(super) fn detached(&mut self, worker: WorkerKey, scope: &mut Scope<'_>) {
        match &mut self.state {
            State::Preparing(preparing) => drop(preparing.workers.remove(&worker)),
            State::Finishing(_, finishing) => finishing.detached(worker, scope.now),
            _ => {}
        }
        if self
            .exchanging_mut()
            .is_some_and(|exchanging| exchanging.detached(worker))
        {
            scope.order(ExchangeOrder::Unseat(worker));
        }
    }

    fn seat_is_starved(&mut self, worker: WorkerKey, missing: Option<Vec<Missing>>) {
        if let Some(seat) = self.exchanging_mut().and_then(|one| one.seat_of(worker)) {
            seat.starved = missing;
        }
    }

    pub(super) fn hear_worker(&mut self, worker: WorkerKey, message: FromWorker, scope: &mut Scope<'_>) {
        match message {
            FromWorker::Prepared { run, data, .. } if run == self.run => self.prepared(worker, Ok(data), scope),
            FromWorker::Refused { run, reason } if run == self.run => {
                self.prepared(worker, Err(Excluded::Unable(reason.into())), scope);
            }
            FromWorker::Stats(stats) => {
                if stats.batches > 0 {
                    self.code_failures = 0;
                }
                if let Some(seat) = self.exchanging_mut().and_then(|one| one.seat_of(worker)) {
                    seat.count(*stats);
                }
            }
            FromWorker::Starved(missing) => self.seat_is_starved(worker, Some(missing)),
            FromWorker::Fed => self.seat_is_starved(worker, None),
            FromWorker::Evaluated { run, evaluation } if run == self.run => {
                tracing::info!(
                    event = "model_evaluated",
                    accuracy = evaluation.accuracy,
                    loss = evaluation.loss,
                    "a worker has measured the model"
                );
                self.evaluated(worker, evaluation, scope);
            }
            FromWorker::Closed { residual_norm } => {
                tracing::info!(
                    event = "worker_closed",
                    residual_norm,
                    "a worker has made its last batch; its remaining residual is dropped"
                );
                if let Some(seat) = self.exchanging_mut().and_then(|one| one.seat_of(worker)) {
                    seat.closed = true;
                }
            }
            FromWorker::Finished { digest } => {
                if let State::Finishing(exchanging, finishing) = &mut self.state {
                    if digest.is_none() {
                        // Weights that are not on the lattice are not saved: another worker has to save.
                        finishing.detached(worker, scope.now);
                    }
                    if let Some(seat) = exchanging.seat_of(worker) {
                        seat.finished = true;
                        seat.digest = digest;
                    }
                }
            }
            FromWorker::SavedModel { run, saved } => {
                if run == self.run
                    && let State::Finishing(_, finishing) = &mut self.state
                {
                    finishing.saved(worker, saved);
                }
            }
            FromWorker::Failed { reason, cause } => {
                let known = self.exchanging_mut().is_some_and(|one| one.seat_of(worker).is_some());
                self.code_failures += u8::from(known && cause == FailureCause::Code);
                if known && cause == FailureCause::Diverged {
                    self.note_divergence(reason, scope);
                } else if self.code_failures == CODE_FAILURES_MAX {
                    self.withdraw(Excluded::Unable(reason.into()), scope);
                } else {
                    if cause == FailureCause::Diverged && self.is_over() {
                        tracing::debug!(
                            event = "worker_restarted",
                            reason,
                            "a worker of a failed run is restarted"
                        );
                    } else {
                        tracing::error!(event = "worker_failed", reason, "a worker failed and is restarted");
                    }
                    scope.effects.push(RunEffect::HangUp(worker));
                }
            }
            // Messages about another run, or not about the run at all.
            FromWorker::Prepared { .. }
            | FromWorker::Refused { .. }
            | FromWorker::Evaluated { .. }
            | FromWorker::Hello(_)
            | FromWorker::Alive
            | FromWorker::First { .. }
            | FromWorker::Saved { .. }
            | FromWorker::Idle => {}
        }
    }

    /// Records a worker's answer to the order to open the job's data.
    fn prepared(&mut self, worker: WorkerKey, data: Result<DataInfo, Excluded>, scope: &mut Scope<'_>) {
        if let State::Preparing(preparing) = &mut self.state {
            if let Some(answer) = preparing.workers.get_mut(&worker) {
                *answer = Some(data);
            }
            return;
        }
        // A worker that cannot take part is started again after a pause and asked again: its data may be back.
        let refused = self.exchanging_mut().is_some_and(|one| !one.prepared(worker, data));
        scope.effects.extend(refused.then_some(RunEffect::HangUp(worker)));
    }
}
