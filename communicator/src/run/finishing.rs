//! Last phase of a run, when all have agreed on the batches: workers report their digests, and one of them measures and
//! saves the model. A node waits for the digests of all members and for its own file, but never for another node's
//! disk.

use std::collections::BTreeSet;

use protocol::ids::NodeId;
use protocol::reasons::{KeptWeights, RunFailure};
use protocol::weights::digest::Digest;
use protocol::wire::run_beat::{ParticipantState, Settled};

use super::active::{ActiveRun, Scope, State};
use super::ending;
use super::event::{ExchangeOrder, RunEffect, Saving};
use super::states::{LastCheckpoint, Saver, Seat};
use crate::log_context::NEWS;

impl ActiveRun {
    /// Advances the last phase of a run, in which the model is measured and saved, as far as possible.
    pub(super) fn finish(&mut self, scope: &mut Scope<'_>) {
        let before = self.members.own.clone();
        if let State::Finishing(_, finishing) = &mut self.state {
            // Other members may not have seen yet that all are frozen; they must not wait for a lost one.
            self.members
                .leave_out_the_lost(&mut finishing.members, scope.now, scope.limits);
        }
        if self.order_to_finish(scope) {
            self.tell_digests(scope);
            self.save(scope);
        }
        self.news |= self.members.own != before;
        self.try_end(scope);
    }

    /// Returns true if the final digest of this node's replica is known and workers were ordered to finish. A damaged
    /// replica is first replaced if another member has a sound one.
    fn order_to_finish(&mut self, scope: &mut Scope<'_>) -> bool {
        let State::Finishing(exchanging, finishing) = &mut self.state else {
            return false;
        };
        let Some((settlement, _)) = &finishing.settlement else {
            return false;
        };
        let alone = finishing.members.len() < 2;
        let waited = scope.now.saturating_sub(finishing.since) > scope.limits.settle;
        if settlement.digest.is_err() && !alone && !waited {
            if !exchanging.progress.damaged && !finishing.asked_again {
                finishing.asked_again = true;
                scope.order(ExchangeOrder::Settle);
            }
            return false;
        }
        for seat in exchanging.seats.values_mut().filter(|seat| !seat.ordered) {
            if let Some(worker) = seat.worker {
                seat.ordered = true;
                // A pipeline is measured only when all of its nodes have their last batches.
                let save = matches!(finishing.saver, Saver::None) && !exchanging.plan.topology().saves_stages();
                if save {
                    finishing.saver = Saver::Ordered(worker);
                }
                let save = save.then(Saving::default);
                scope.order(ExchangeOrder::Finish { worker, save });
            }
        }
        true
    }

    /// Sets the final report of this node, once the node's workers have reported the digests of their weights. Workers
    /// that take longer than the limit are disconnected.
    fn tell_digests(&mut self, scope: &mut Scope<'_>) {
        let stats = self.stats();
        let State::Finishing(exchanging, finishing) = &mut self.state else {
            return;
        };
        let Some((settlement, known)) = &finishing.settlement else {
            return;
        };
        if self.members.own.settled.is_some() {
            return;
        }
        let told = |seat: &Seat| seat.finished || seat.worker.is_none();
        let late = scope.now.saturating_sub(*known) > scope.limits.digests;
        if !exchanging.seats.values().all(told) {
            if late {
                let stuck = exchanging.seats.values().filter(|seat| !told(seat));
                let stuck = stuck.filter_map(|seat| seat.worker);
                scope.effects.extend(stuck.map(RunEffect::HangUp));
            }
            return;
        }
        let (digest, sound) = match &settlement.digest {
            Ok(digest) => (*digest, true),
            Err(error) => {
                tracing::error!(
                    event = "ledger_audit_failed", %error,
                    "this node's ledger is damaged: its weights are not the sum of its batches"
                );
                (error.found, false)
            }
        };
        let held = |seat: &Seat| -> Option<Option<Digest>> { seat.finished.then_some(seat.digest) };
        let workers = exchanging
            .seats
            .values()
            .filter_map(held)
            .all(|found| found == Some(digest));
        self.members.own.settled = Some(Settled {
            digest,
            whole: settlement.whole.unwrap_or(digest),
            workers_agree: sound && workers,
            stats,
            samples: settlement.samples,
            repeated: settlement.repeated,
            bytes_sent: settlement.bytes_sent,
            seconds: settlement.seconds,
            usage: settlement.usage.clone(),
            course: self.course.clone(),
            scores: None,
        });
    }

    /// Lets one worker save the model. If all workers that trained are gone, a new worker is given the ledger (the
    /// node's replica) for that.
    fn save(&mut self, scope: &mut Scope<'_>) {
        let saves_stage = self.plan().is_some_and(|plan| plan.topology().saves_stages());
        if saves_stage {
            self.save_stage(scope);
        }
        let State::Finishing(exchanging, finishing) = &mut self.state else {
            return;
        };
        if matches!(finishing.saver, Saver::None) && !saves_stage {
            if let Some(worker) = exchanging.take_ready() {
                finishing.saver = Saver::Ordered(worker);
                let save = Saving {
                    spare: finishing.spare,
                    ..Saving::default()
                };
                scope.order(ExchangeOrder::Measure { worker, save });
            } else if let Some(worker) = exchanging.take_finished() {
                // That worker has reported its digest and has nothing left to do: it opens the data again, and is ready
                // then.
                scope.order(ExchangeOrder::Unseat(worker));
            }
        }
        if let (Saver::Done(saved), Some(settled)) = (&finishing.saver, &mut self.members.own.settled) {
            self.members.own.saved = Some(saved.is_ok());
            settled.scores = saved.as_ref().ok().cloned().flatten();
            self.scores = settled.scores.clone().or(self.scores.take());
        }
    }

    /// Ends the run when all members have reported their digests and the model is measured and saved, or all attempts
    /// have failed.
    fn try_end(&mut self, scope: &mut Scope<'_>) {
        let (now, limits) = (scope.now, scope.limits);
        let living = self.members.waited_for(now, limits);
        let members = self.result_members(scope.me.id, &living);
        let measured = self.is_measured_by(&members);
        let waits = |node: &NodeId| !self.has_settled(*node) && (living.contains(node) || *node == scope.me.id);
        if members.iter().any(waits) {
            return;
        }
        let State::Finishing(exchanging, finishing) = &mut self.state else {
            return;
        };
        let Some((settlement, _)) = &finishing.settlement else {
            return;
        };
        let state = |node: &NodeId| self.members.state(*node);
        let saves_stage = exchanging.plan.topology().saves_stages();
        let elapsed = now.saturating_sub(finishing.tries);
        let tries = |state: &ParticipantState| state.saved.is_none() && !state.ended;
        let another = |node: &&NodeId| **node != scope.me.id && living.contains(*node);
        let others_try = members.iter().filter(another).filter_map(state).any(tries);
        let waits_for_file = match finishing.saver {
            Saver::Done(_) => false,
            // A node without a worker cannot save; a file that takes this long is on a disk that does not answer.
            Saver::None => elapsed < limits.save,
            Saver::Ordered(_) => elapsed < if measured { limits.save } else { limits.measure },
        };
        if waits_for_file {
            return;
        }
        // A model that was measured is saved on some node. For a stage, only another file of the same stage counts.
        let is_saved = |node: &NodeId| state(node).is_some_and(|state| state.saved == Some(true));
        let has_file = if saves_stage {
            finishing.members.iter().any(is_saved)
        } else {
            measured
        };
        if !has_file && !finishing.spare && matches!(finishing.saver, Saver::Done(Err(_))) {
            tracing::warn!(
                event = "model_save_relocated",
                "this node saves the model among the machine's temporary files, because no node could save it elsewhere"
            );
            finishing.spare = true;
            finishing.tries = now;
            finishing.saver = Saver::None;
            // The other members wait for the second attempt.
            self.members.own.saved = None;
            return;
        }
        // A node whose own file failed waits for another node's file, but not for ever.
        let patience = if saves_stage { limits.measure } else { limits.save };
        if !measured && others_try && elapsed < patience {
            return;
        }
        if !measured {
            return self.keep(scope);
        }
        let settled = members.iter().filter_map(|node| {
            let settled = state(node)?.settled.clone()?;
            Some((*node, settled))
        });
        let left = |node: NodeId| {
            let state = state(&node).filter(|state| state.withdrawn)?;
            Some(state.residual_lost)
        };
        let plan = &exchanging.plan;
        let weights = plan.topology().weights(settlement.weights);
        let result = ending::result(scope.me.id, plan, &settled.collect(), left, weights, self.stop);
        let outcome = result.map(Box::new).ok_or(RunFailure::NotMeasured);
        if let Ok(result) = &outcome {
            let accuracy = result.scores.accuracy.map(|accuracy| format!("{accuracy:.4}"));
            let loss = format!("{:.4}", result.scores.loss);
            tracing::info!(
                target: NEWS, event = "run_ended", accuracy, loss, agree = result.agree, digest = %result.digest,
                "the run has ended"
            );
        }
        self.end(outcome, scope);
    }

    /// Returns the nodes whose reports make up the result: the members of the end and, for a model in pipeline stages,
    /// the nodes of the other stages, which agree on their end by themselves.
    pub(super) fn result_members(&self, me: NodeId, living: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let State::Finishing(exchanging, finishing) = &self.state else {
            return BTreeSet::new();
        };
        let mut members = finishing.members.clone();
        if exchanging.plan.topology().saves_stages() {
            let ended_with = |node| {
                let state = self.members.state(node).filter(|state| state.settled.is_some())?;
                Some(state.ballot?.fingerprint)
            };
            members.extend(ending::other_stages(me, &exchanging.plan, living, ended_with));
        }
        members
    }

    /// Returns true if a node has sent its final report of the run.
    pub(super) fn has_settled(&self, node: NodeId) -> bool {
        self.members.state(node).is_some_and(|state| state.settled.is_some())
    }

    /// Returns true if one of these nodes has reported scores of the model.
    pub(super) fn is_measured_by(&self, members: &BTreeSet<NodeId>) -> bool {
        let scores = |node: &NodeId| self.members.state(*node)?.settled.as_ref()?.scores.as_ref();
        members.iter().any(|node| scores(node).is_some())
    }

    /// Keeps the weights in a checkpoint because no node could save the model, and fails the run with the checkpoint's
    /// path.
    fn keep(&mut self, scope: &mut Scope<'_>) {
        let State::Finishing(_, finishing) = &mut self.state else {
            return;
        };
        let kept = match &finishing.kept {
            LastCheckpoint::No => {
                finishing.kept = LastCheckpoint::Asked(scope.now);
                return scope.order(ExchangeOrder::Keep);
            }
            LastCheckpoint::Asked(at) if scope.now.saturating_sub(*at) < scope.limits.measure => return,
            LastCheckpoint::Asked(_) => KeptWeights::DiskHangs,
            LastCheckpoint::Done(Ok(path)) => KeptWeights::Checkpoint {
                checkpoint: path.display().to_string().into(),
                folder: path.parent().unwrap_or(path).display().to_string().into(),
            },
            LastCheckpoint::Done(Err(error)) => KeptWeights::Lost(error.as_str().into()),
        };
        self.fail(RunFailure::NotSaved(kept), scope);
    }
}
