//! Whom and what a run waits for: what follows "waiting for".

use std::time::Duration;

use protocol::ids::NodeId;
use protocol::wire::run_beat::ParticipantState;

use super::active::{ActiveRun, State};
use super::states::Exchanging;
use crate::timing::RunLimits;

impl ActiveRun {
    /// Everything that this node waits for, to begin or to end the run.
    pub(super) fn waiting(&self, now: Duration, limits: &RunLimits) -> Vec<String> {
        match &self.state {
            State::Preparing(preparing) if preparing.is_waiting() => {
                let busy = preparing.workers.values().filter(|answer| answer.is_none()).count();
                vec![match busy {
                    0 => "this node's workers to attach".into(),
                    _ => "this node's workers to open the data".into(),
                }]
            }
            State::Preparing(_) => vec!["other nodes to get ready".into()],
            State::Opening { .. } => vec!["this node to start exchanging batches".into()],
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
                    waiting.push("this node to restore the weights that it measured, when all workers have made their last batches".into());
                } else if training {
                    waiting.push("this node's workers to make their last batches".into());
                }
                if exchanging.progress.damaged {
                    waiting.push("another node's ledger, because this node's is damaged".into());
                }
                let others = self.members.waited_for(now, limits).into_iter();
                waiting.extend(self.lacking(others, now, limits, |state| {
                    if state.stands_by {
                        Some("to restore the weights that it measured")
                    } else if !state.closed {
                        Some("to let its workers make their last batches")
                    } else if state.catching_up {
                        Some("to receive the batches that it missed")
                    } else if state.fingerprint != self.members.own.fingerprint {
                        Some("to have the same batches as this node")
                    } else if state.ballot != self.members.own.ballot || !state.frozen {
                        Some("to agree on the nodes that end the run together")
                    } else {
                        None
                    }
                }));
                waiting
            }
            State::Finishing(exchanging, finishing) => {
                let mut waiting: Vec<String> = self.unmanned(exchanging, |state| !state.ended).collect();
                if self.members.own.settled.is_none() {
                    waiting.push("this node's workers to report their digests".into());
                } else if finishing.is_saving() {
                    waiting.push("this node to measure and save the model".into());
                }
                let own_is_saved = self.members.own.saved == Some(true);
                let others = self.members.waited_for(now, limits).into_iter();
                let others = others.filter(|node| finishing.members.contains(node));
                waiting.extend(self.lacking(others, now, limits, move |state| match &state.settled {
                    None => Some("to report its digest"),
                    Some(_) if state.saved.is_none() && !own_is_saved => Some("to measure the model"),
                    Some(_) => None,
                }));
                waiting
            }
        }
    }

    /// Nodes of pipelines that have lost their worker, among those that still need one. The others of the pipeline wait for it
    /// in every minibatch and in the measurement.
    fn unmanned<'a>(
        &'a self,
        exchanging: &'a Exchanging,
        needs_worker: impl Fn(&ParticipantState) -> bool + 'a,
    ) -> impl Iterator<Item = String> + 'a {
        let own = self.members.own.unmanned;
        let own = own.then(|| "this node's worker to be started again".to_owned());
        let others = exchanging.plan.participants.iter().filter(move |one| {
            let state = self.members.state(one.node);
            one.node != self.members.me() && state.is_some_and(|state| state.unmanned && needs_worker(state))
        });
        own.into_iter()
            .chain(others.map(|one| format!("{} to start its worker again", one.name)))
    }

    /// What is missing of each of the others among these.
    fn lacking<'a>(
        &'a self,
        nodes: impl Iterator<Item = NodeId> + 'a,
        now: Duration,
        limits: &'a RunLimits,
        lacks: impl Fn(&ParticipantState) -> Option<&'static str> + 'a,
    ) -> impl Iterator<Item = String> + 'a {
        let others = nodes.filter(|&node| node != self.members.me());
        others.filter_map(move |node| {
            let name = self.name(node);
            if let Some(silence) = self.members.silence(node, now, limits) {
                return Some(silent(&name, silence, limits));
            }
            let Some(state) = self.members.state(node) else {
                return Some(format!("the first message from {name}"));
            };
            Some(format!("{name} {}", lacks(state)?))
        })
    }
}

/// Who is silent, for how long, and until when it is waited for.
fn silent(name: &str, silence: Duration, limits: &RunLimits) -> String {
    let (silence, limit) = (silence.as_secs(), limits.give_up_after.as_secs());
    format!("{name}, silent for {silence} s, given up at {limit} s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;

    #[test]
    fn who_is_silent_is_named_with_how_long_and_until_when() {
        let said = silent("vm-19d5", Duration::from_millis(12_900), &Timing::DEFAULT.run);
        assert_eq!(said, "vm-19d5, silent for 12 s, given up at 30 s");
    }
}
