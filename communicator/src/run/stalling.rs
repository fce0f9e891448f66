//! A run in which nobody trains though samples are missing: a worker may hold them back, or be gone unnoticed. The run says
//! whose samples are missing, and takes them over; if that is of no use, workers are started again.
//!
//! A worker that has nothing to train says so, and for which samples it waits. As long as one worker anywhere is at a step,
//! however long that takes, the run does not stall.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::reasons::waiting::WaitingFor;
use protocol::wire::attach::Missing;
use protocol::wire::run_beat::StopReason;

use super::active::{ActiveRun, Scope, State};
use super::event::{ExchangeOrder, RunEffect};
use super::states::{Exchanging, Seat};

/// What is known of a run that makes no progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stall {
    /// Since when all participants have been without samples and nothing has come; none if that is not so.
    since: Option<Duration>,
    /// The batches of this node then.
    fingerprint: u64,
    /// What was done about it since anything last came.
    remedy: Remedy,
}

/// What is done about a run that makes no progress, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Remedy {
    #[default]
    None,
    /// The samples of others are taken over, for the rest of the run.
    TakeOver,
    /// Workers are started again from the ledger.
    Restart,
    /// The run ends with what it has: those who had workers are gone, and this node came without any.
    End,
}

impl Remedy {
    /// The last one that is due when nothing has come for this long.
    fn due(waited: Duration, limit: Duration) -> Self {
        match waited.as_millis() / limit.as_millis().max(1) {
            0 => Self::None,
            1 => Self::TakeOver,
            2 | 3 => Self::Restart,
            _ => Self::End,
        }
    }
}

impl Exchanging {
    /// Whether every worker here has nothing to train. A seat that nobody is about to take counts as such.
    pub(crate) fn is_starved(&self) -> bool {
        let expected = !self.asked.is_empty() || !self.ready.is_empty();
        let is_starved = |seat: &Seat| seat.starved.is_some() || seat.worker.is_none() && !expected;
        self.seated.is_some() && self.seats.values().all(is_starved)
    }

    /// The samples that this node's workers wait for, by the slots that were to train them.
    fn missing(&self) -> BTreeMap<usize, u64> {
        let mut missing = BTreeMap::new();
        for &Missing { slot, samples } in self.seats.values().flat_map(|seat| seat.starved.iter().flatten()) {
            let most: &mut u64 = missing.entry(slot as usize).or_default();
            *most = samples.max(*most);
        }
        missing
    }
}

impl ActiveRun {
    /// Looks whether the run makes any progress, and helps if it does not.
    pub(super) fn look_for_a_stall(&mut self, scope: &mut Scope<'_>) {
        let (now, limits) = (scope.now, scope.limits);
        let State::Training(exchanging) = &mut self.state else {
            return;
        };
        let starved = exchanging.is_starved() && !exchanging.is_moving(now, limits);
        self.news |= std::mem::replace(&mut self.members.own.starved, starved) != starved;
        let is_starved = |node| self.members.state(node).is_some_and(|state| state.starved);
        let fingerprint = exchanging.progress.fingerprint;
        let may_stall = starved && !exchanging.progress.complete && exchanging.plan.topology().can_stall();
        // Most of the time somebody here trains, and nobody else has to be looked at.
        let stalls = may_stall && self.members.waited_for(now, limits).into_iter().all(is_starved);
        let stall = &mut exchanging.stall;
        if !stalls || stall.fingerprint != fingerprint {
            stall.since = stalls.then_some(now);
            stall.remedy = Remedy::None;
            stall.fingerprint = fingerprint;
            return;
        }
        let Some(since) = stall.since else {
            stall.since = Some(now);
            return;
        };
        let due = Remedy::due(now.saturating_sub(since), limits.stalled);
        if due <= stall.remedy {
            return;
        }
        stall.remedy = due;
        match due {
            Remedy::TakeOver => {
                let own: BTreeSet<usize> = exchanging.seats.keys().copied().collect();
                let missing = exchanging.missing().into_keys();
                let others: BTreeSet<usize> = missing.filter(|slot| !own.contains(slot)).collect();
                for missing in self.missing_samples() {
                    tracing::warn!(
                        event = "run_stalled",
                        "no progress: waiting for {missing}; this node takes over the missing samples"
                    );
                }
                scope.order(ExchangeOrder::TakeOver(others));
            }
            Remedy::Restart => {
                let seated: Vec<_> = exchanging.seats.values().filter_map(|seat| seat.worker).collect();
                tracing::warn!(
                    event = "run_stalled",
                    "no progress: this node restarts its workers from its ledger"
                );
                scope.effects.extend(seated.into_iter().map(RunEffect::HangUp));
            }
            Remedy::End if exchanging.seats.is_empty() => self.stop(StopReason::OthersEnded, scope),
            Remedy::None | Remedy::End => {}
        }
    }

    /// Whose samples are missing, where nobody trains.
    pub(super) fn missing_samples(&self) -> Vec<WaitingFor> {
        let State::Training(exchanging) = &self.state else {
            return Vec::new();
        };
        if exchanging.stall.since.is_none() {
            return Vec::new();
        }
        if exchanging.seats.is_empty() {
            return vec![WaitingFor::AnyWorker];
        }
        let missing = exchanging.missing();
        let mut by_holder: Vec<(String, u64)> = Vec::new();
        for (slot, samples) in &missing {
            let holder = exchanging.plan.participants.iter();
            let mut holder = holder.filter(|one| exchanging.plan.topology().slots_of(one.node).contains(slot));
            let name = holder
                .next()
                .map_or_else(|| format!("slot {slot}"), |one| one.name.clone());
            match by_holder.iter_mut().find(|(other, _)| *other == name) {
                Some((_, sum)) => *sum += samples,
                None => by_holder.push((name, *samples)),
            }
        }
        if by_holder.is_empty() {
            return vec![WaitingFor::OwnSamples];
        }
        let missing = by_holder.into_iter().map(|(holder, samples)| WaitingFor::Samples {
            holder: holder.into(),
            samples,
        });
        missing.collect()
    }
}
