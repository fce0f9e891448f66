//! Stalled runs: no worker trains though samples are missing, because a worker holds them back or is gone unnoticed.
//! The run names the missing samples and takes them over; if that does not help, workers are started again.
//!
//! A worker that has nothing to train says so, and names the samples that it waits for. As long as one worker anywhere
//! is at a step, however long that takes, the run does not stall.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::reasons::waiting::WaitingFor;
use protocol::wire::attach::Missing;
use protocol::wire::run_beat::StopReason;

use super::active::{ActiveRun, Scope, State};
use super::event::{ExchangeOrder, RunEffect};
use super::states::{Exchanging, Seat};

/// Detector of a run that makes no progress: since when it has made none, and the remedy tried last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stall {
    /// Time since which all participants have been without samples and no batch has come; `None` if the run does not
    /// stall.
    since: Option<Duration>,
    /// Fingerprint of this node's batches when the stall began; a change of it shows progress.
    fingerprint: u64,
    /// Remedy that was tried last since the run made progress.
    remedy: Remedy,
}

/// Remedies for a run that makes no progress, in the order in which they are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Remedy {
    #[default]
    None,
    /// Remedy for a stall: let this node's workers take over the samples of others for the rest of the run.
    TakeOver,
    /// Remedy for a stall: start this node's workers again from the node's replica.
    Restart,
    /// Remedy for a stall: end the run with what it has, because the nodes with workers are gone and this one came
    /// without any.
    End,
}

impl Remedy {
    /// Returns the strongest remedy to try when the run has made no progress for the time `waited`: the more multiples
    /// of `limit` that time contains, the stronger the remedy.
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
    /// Returns true if every worker of this node has nothing to train. An empty seat (a place without its worker)
    /// counts, too, unless a worker is about to take it.
    pub(crate) fn is_starved(&self) -> bool {
        let expected = !self.asked.is_empty() || !self.ready.is_empty();
        let is_starved = |seat: &Seat| seat.starved.is_some() || seat.worker.is_none() && !expected;
        self.seated.is_some() && self.seats.values().all(is_starved)
    }

    /// Returns the numbers of samples that this node's workers wait for, by the slots (workers' numbers) that were to
    /// train them.
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
    /// Detects that the run makes no progress, and applies the next remedy that is due, such as taking over samples of
    /// other nodes.
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
        // Mostly some worker here trains; then the other participants need not be looked at.
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

    /// Returns what a stalled run waits for: the number of missing samples for each node to which they were dealt.
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
