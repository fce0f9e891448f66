//! Finds the things that a run waits for.

use std::time::Duration;

use protocol::ids::NodeId;
use protocol::reasons::waiting::{NodeTask, WaitingFor};
use protocol::wire::run_beat::ParticipantState;

use super::active::{ActiveRun, State};
use super::states::Exchanging;
use crate::timing::RunLimits;

impl ActiveRun {
    /// Returns everything that this node waits for in order to begin or to end the run.
    pub(super) fn waiting(&self, now: Duration, limits: &RunLimits) -> Vec<WaitingFor> {
        match &self.state {
            State::Preparing(preparing) if preparing.is_waiting() => {
                let is_busy = preparing.workers.values().any(Option::is_none);
                vec![if is_busy {
                    WaitingFor::OwnData
                } else {
                    WaitingFor::OwnWorkers
                }]
            }
            State::Preparing(_) => vec![WaitingFor::OtherNodes],
            State::Opening { .. } => vec![WaitingFor::OwnExchange],
            State::Training(exchanging) => {
                let unmanned = self.unmanned(exchanging, |state| !state.closed);
                unmanned.chain(self.missing_samples()).collect()
            }
            State::Ended(_) => Vec::new(),
            State::Settling(exchanging, _) => {
                let mut waiting = Vec::new();
                let training = exchanging
                    .seats
                    .values()
                    .any(|seat| seat.worker.is_some() && !seat.closed);
                if self.members.own.stands_by {
                    waiting.push(WaitingFor::OwnMeasuredWeights);
                } else if training {
                    waiting.push(WaitingFor::OwnLastBatches);
                }
                if exchanging.progress.damaged {
                    waiting.push(WaitingFor::OwnLedger);
                }
                let others = self.members.waited_for(now, limits).into_iter();
                waiting.extend(self.lacking(others, now, limits, |state| {
                    if state.stands_by {
                        Some(NodeTask::RestoreMeasuredWeights)
                    } else if !state.closed {
                        Some(NodeTask::MakeLastBatches)
                    } else if state.catching_up {
                        Some(NodeTask::CatchUp)
                    } else if state.fingerprint != self.members.own.fingerprint {
                        Some(NodeTask::HaveSameBatches)
                    } else if state.ballot != self.members.own.ballot || !state.frozen {
                        Some(NodeTask::AgreeOnMembers)
                    } else {
                        None
                    }
                }));
                waiting
            }
            State::Finishing(exchanging, finishing) => {
                let mut waiting: Vec<WaitingFor> = self.unmanned(exchanging, |state| !state.ended).collect();
                if self.members.own.settled.is_none() {
                    waiting.push(WaitingFor::OwnDigests);
                } else if finishing.is_saving() {
                    waiting.push(WaitingFor::OwnModel);
                }
                let living = self.members.waited_for(now, limits);
                let members = self.result_members(self.members.me(), &living);
                // A stage that is saved here says nothing about the whole model.
                let is_whole = !exchanging.plan.topology().saves_stages();
                let has_model = self.members.own.saved == Some(true) && (is_whole || self.is_measured_by(&members));
                let others = living.into_iter().filter(|node| members.contains(node));
                waiting.extend(self.lacking(others, now, limits, move |state| match &state.settled {
                    None => Some(NodeTask::ReportDigest),
                    Some(_) if state.saved.is_none() && !has_model => Some(NodeTask::MeasureModel),
                    Some(_) => None,
                }));
                waiting
            }
        }
    }

    /// Returns an entry for each node of a pipeline that has lost its worker and still needs one. The rest of the
    /// pipeline waits for that worker in every minibatch and in the measurement.
    fn unmanned<'a>(
        &'a self,
        exchanging: &'a Exchanging,
        needs_worker: impl Fn(&ParticipantState) -> bool + 'a,
    ) -> impl Iterator<Item = WaitingFor> + 'a {
        let own = self.members.own.unmanned.then_some(WaitingFor::OwnWorkerRestart);
        let others = exchanging.plan.participants.iter().filter(move |one| {
            let state = self.members.state(one.node);
            one.node != self.members.me() && state.is_some_and(|state| state.unmanned && needs_worker(state))
        });
        own.into_iter()
            .chain(others.map(|one| WaitingFor::node(&one.name, NodeTask::RestartWorker)))
    }

    /// Returns what the run waits for from each of these nodes, except this one: a message, if the node is silent or
    /// was never heard; else the task, if any, that `lacks` finds in the node's newest state.
    fn lacking<'a>(
        &'a self,
        nodes: impl Iterator<Item = NodeId> + 'a,
        now: Duration,
        limits: &'a RunLimits,
        lacks: impl Fn(&ParticipantState) -> Option<NodeTask> + 'a,
    ) -> impl Iterator<Item = WaitingFor> + 'a {
        let others = nodes.filter(|&node| node != self.members.me());
        others.filter_map(move |node| {
            let name = self.name(node);
            if let Some(silence) = self.members.silence(node, now, limits) {
                return Some(WaitingFor::Silent {
                    node: name.into(),
                    silence,
                    limit: limits.give_up_after,
                });
            }
            let Some(state) = self.members.state(node) else {
                return Some(WaitingFor::FirstMessage(name.into()));
            };
            Some(WaitingFor::node(&name, lacks(state)?))
        })
    }
}
