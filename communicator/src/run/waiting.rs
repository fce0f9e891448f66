//! Whom and what a run waits for, in sentences.

use std::time::Duration;

use super::active::{ActiveRun, State};
use crate::timing::RunLimits;

impl ActiveRun {
    /// A sentence for everything that this node waits for, to begin or to end the run.
    pub(super) fn waiting(&self, now: Duration, limits: &RunLimits) -> Vec<String> {
        match &self.state {
            State::Preparing(preparing) if preparing.is_waiting() => {
                let busy = preparing.workers.values().filter(|answer| answer.is_none()).count();
                vec![match busy {
                    0 => "this node's workers have not attached yet".into(),
                    _ => "this node's workers open the data".into(),
                }]
            }
            State::Preparing(_) => vec!["other nodes are getting ready".into()],
            State::Opening { .. } => vec!["this node starts its exchange".into()],
            State::Training(_) | State::Ended(_) => Vec::new(),
            State::Settling(exchanging, _) => {
                let mut waiting = Vec::new();
                let training = exchanging
                    .seats
                    .values()
                    .any(|seat| seat.worker.is_some() && !seat.closed);
                if self.members.own.stands_by {
                    waiting.push("this node brings back the weights that were measured, when all have closed".into());
                } else if training {
                    waiting.push("this node's workers have not made their last batches".into());
                }
                if exchanging.progress.damaged {
                    waiting.push("this node's ledger is damaged, and another's is on its way".into());
                }
                waiting.extend(self.others(now, limits, |state| {
                    if state.stands_by {
                        Some("it brings back the weights that were measured")
                    } else if !state.closed {
                        Some("its workers have not made their last batches")
                    } else if state.catching_up {
                        Some("it is getting what it missed")
                    } else if state.stand != self.members.own.stand {
                        Some("it has not the same batches yet")
                    } else if state.ballot != self.members.own.ballot || !state.frozen {
                        Some("it does not agree yet on who ends the run")
                    } else {
                        None
                    }
                }));
                waiting
            }
            State::Finishing(_, finishing) => {
                let mut waiting = Vec::new();
                if self.members.own.settled.is_none() {
                    waiting.push("this node's workers have not told their digests".into());
                } else if finishing.is_saving() {
                    waiting.push("this node's model is being measured and saved".into());
                }
                let own_is_saved = self.members.own.saved == Some(true);
                let others = self.others(now, limits, move |state| match &state.settled {
                    None => Some("it has not told its digest"),
                    Some(_) if state.saved.is_none() && !own_is_saved => Some("it has not measured the model"),
                    Some(_) => None,
                });
                let ends_with: Vec<String> = finishing.members.iter().map(|&node| self.name(node)).collect();
                waiting.extend(others.filter(|sentence| ends_with.iter().any(|name| sentence.starts_with(name))));
                waiting
            }
        }
    }

    /// What is missing of each of the others that are waited for.
    fn others<'a>(
        &'a self,
        now: Duration,
        limits: &RunLimits,
        lacks: impl Fn(&protocol::wire::run_beat::ParticipantState) -> Option<&'static str> + 'a,
    ) -> impl Iterator<Item = String> + 'a {
        let silent = self.members.silent(now, limits);
        let others = self
            .members
            .waited_for(now, limits)
            .into_iter()
            .filter(|&node| node != self.members.me());
        others.filter_map(move |node| {
            let name = self.name(node);
            if silent.contains(&node) {
                return Some(format!("{name} is silent, and is given up in a while"));
            }
            let lacking = self
                .members
                .state(node)
                .map_or(Some("nothing was heard of it yet"), &lacks)?;
            Some(format!("{name}: {lacking}"))
        })
    }
}
