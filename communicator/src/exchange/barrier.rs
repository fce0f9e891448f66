//! The barrier of strategies with rounds: it decides how long a worker waits for other workers to reach the same round.
//!
//! Waiting affects only how long a step takes and how large it is: a replica is the sum of its batches, regardless of
//! waits. So nodes may disagree about which nodes are alive, and every wait has a timeout.
//!
//! If contributions follow losses, a round has two phases: all workers announce their losses, and then emit the
//! contributions that follow from them. Workers wait for each other in both.
//!
//! The barrier cannot deadlock: of the waiting workers, those in the lowest phase wait only for workers that do not
//! wait.

mod contributions;

use std::collections::{BTreeMap, BTreeSet};

use protocol::ids::{NodeId, OriginId};
use protocol::job::RoundWeighting;
use protocol::log::batch::{OriginStatus, RoundPhase};
use protocol::weights::contribution::Contribution;
use protocol::wire::attach::GoOn;
use protocol::wire::link::OriginInfo;
use protocol::wire::run_plan::{Participant, RunPlan};

use self::contributions::AnnouncedLoss;
use crate::planted::{Bug, planted};

/// Timeouts, in ticks, of the barrier at which workers wait for other workers' rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Minimum number of ticks for which workers wait for a late one; the wait is longer where rounds take longer.
    pub late: u32,
    /// Ticks to wait, at the beginning of a run, for the first batch of each worker of the founders (nodes with which
    /// the run begins).
    pub first: u32,
    /// Ticks after the beginning of a node's silence for which its workers still count towards the average.
    pub counted: u32,
}

impl Patience {
    /// The timeouts of a run whose exchange ticks twenty times a second.
    pub const DEFAULT: Self = Self {
        late: 40,
        first: 600,
        counted: 1200,
    };
}

/// A worker is late if its round takes this many times longer than this node's own.
const PACES: u32 = 3;
/// A worker that was late is waited for again after it has been in time this many times.
const TIMES_IN_TIME: u32 = 2;

/// Maximum distance of a batch's round number beyond the newest known round: a higher number is lowered to that,
/// because no run makes that many rounds.
const LEAP_MAX: u64 = 1 << 32;

/// The progress of one origin (one worker) through the rounds.
#[derive(Clone, Copy, Debug, Default)]
struct OriginRounds {
    status: OriginStatus,
    /// Ticks since the worker last reached a round.
    age: u32,
    /// Number of rounds for which the worker must be in time before others wait for it again; set when a wait for it
    /// times out.
    late: u32,
    /// True if the worker was idle and rejoins with an outdated round number. The barrier ignores it until it has
    /// caught up.
    returns: bool,
    /// The loss that the worker last announced, with the number of the round that it belongs to.
    told: Option<(u64, f32)>,
}

/// The number of a node's workers in the run, and whether the run began with the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Participation {
    workers: usize,
    is_founder: bool,
}

/// A worker of this node that waits at the barrier for other workers to reach its round.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The round and phase that the waiting worker has reached.
    status: OriginStatus,
    ticks: u32,
}

/// The barrier on one node: which worker has reached which round, and which of this node's workers wait.
#[derive(Clone, Debug)]
pub struct Barrier {
    me: NodeId,
    patience: Patience,
    weighting: RoundWeighting,
    /// The participants of the run. Workers beyond a participant's announced number are invented by a dishonest peer
    /// and do not count.
    parts: BTreeMap<NodeId, Participation>,
    known: BTreeMap<OriginId, OriginRounds>,
    waiting: BTreeMap<OriginId, Waiting>,
    /// Silent nodes, with the number of ticks since they became silent.
    silent: BTreeMap<NodeId, u32>,
    newest: u64,
    /// The last phase of a round from which a worker of this node was released. Phases of all rounds are numbered in
    /// order.
    gone: u64,
    /// Ticks (calls at a fixed interval) since the first of this node's workers was released into the present phase of a
    /// round. It becomes `pace` at the round's end, by which slow workers are recognised.
    since: u32,
    /// Ticks that this node's workers took for their last round.
    pace: u32,
    /// Number of times that a wait for a worker timed out.
    in_vain: u64,
}

impl Barrier {
    /// Makes the barrier of a participant before the first round of its run.
    #[must_use]
    pub fn new(me: NodeId, patience: Patience, plan: &RunPlan) -> Self {
        let part = |one: &Participant| Participation {
            workers: one.workers,
            is_founder: !one.guest,
        };
        Self {
            me,
            patience,
            weighting: plan.job.exchange.weighting().unwrap_or(RoundWeighting::Mean),
            parts: plan.participants.iter().map(|one| (one.node, part(one))).collect(),
            known: BTreeMap::new(),
            waiting: BTreeMap::new(),
            silent: BTreeMap::new(),
            newest: 0,
            gone: 0,
            since: 0,
            pace: 0,
            in_vain: 0,
        }
    }

    /// Adds a node that joins the run with this many workers to those that the barrier waits for.
    pub(super) fn joins(&mut self, node: NodeId, workers: usize) {
        self.parts.entry(node).or_insert(Participation {
            workers,
            is_founder: false,
        });
    }

    /// The newest round that any worker has reached.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Number of times that a wait for a worker timed out.
    #[must_use]
    pub fn in_vain(&self) -> u64 {
        self.in_vain
    }

    /// Records a worker's progress through the rounds, from a batch that was applied. `loss` is the announced loss,
    /// unless the batch came in a bundle (the sum of several workers' batches).
    pub(super) fn applied(&mut self, origin: OriginId, status: OriginStatus, loss: Option<f32>, is_own: bool) {
        let in_time = self.late_after();
        let round = status.round.min(self.newest.saturating_add(LEAP_MAX));
        let status = OriginStatus { round, ..status };
        let known = self.known.entry(origin).or_default();
        let before = std::mem::replace(&mut known.status, status);
        if status.phase() <= before.phase() {
            return;
        }
        self.newest = self.newest.max(round);
        if status.round_phase == RoundPhase::Announces {
            known.told = loss.map(|loss| (round, loss));
        }
        let age = std::mem::take(&mut known.age);
        // The contribution that follows an announced loss says nothing about the duration of a round.
        let has_trained = before.round_phase != RoundPhase::Announces;
        // Being in time is measured in ticks, not by the round number: a worker that is behind has the number that was
        // the newest when its round began.
        if age <= in_time && has_trained {
            known.late = known.late.saturating_sub(1);
        }
        known.returns = before.round_phase == RoundPhase::Idle;
        if is_own {
            if before.round_phase == RoundPhase::Contributes {
                self.pace = self.since;
            }
            self.waiting.insert(origin, Waiting { status, ticks: 0 });
        }
    }

    /// Ticks after which this node no longer waits for a late worker.
    pub(super) fn late_after(&self) -> u32 {
        self.patience.late.max(PACES.saturating_mul(self.pace))
    }

    /// Sets the nodes that are silent (out of reach). The barrier stops waiting for the workers of these nodes.
    pub(super) fn hears(&mut self, silent: &BTreeSet<NodeId>) {
        self.silent.retain(|node, _| silent.contains(node));
        for &node in silent {
            self.silent.entry(node).or_default();
        }
    }

    pub(super) fn tick(&mut self) {
        self.since = self.since.saturating_add(1);
        let silent = self.silent.values_mut();
        let waiting = self.waiting.values_mut().map(|one| &mut one.ticks);
        let known = self.known.values_mut().map(|known| &mut known.age);
        for ticks in silent.chain(waiting).chain(known) {
            *ticks = ticks.saturating_add(1);
        }
    }

    /// Releases the workers of this node that need not wait any longer, each with the order to go on.
    pub(super) fn release(&mut self, origins: &BTreeMap<OriginId, OriginInfo>) -> Vec<(OriginId, GoOn)> {
        // Origins that have ended do not wait.
        self.waiting
            .retain(|origin, _| origins.get(origin).is_some_and(|info| info.ended.is_none()));
        let mut free = Vec::new();
        for (&origin, waiting) in &self.waiting {
            // In the first round, founders of the run wait for all other founders.
            let is_founder = self.parts.get(&self.me).is_some_and(|part| part.is_founder);
            let begins = is_founder && waiting.status.round == 1 && self.newest == 1;
            let phase = waiting.status.phase();
            let missing: Vec<OriginId> = self.missing(origin, phase, begins, origins).collect();
            let waits_for_first = begins && self.is_incomplete(origins);
            let first = if begins { self.patience.first } else { 0 };
            let limit = self.late_after().max(first);
            let in_vain = waiting.ticks >= limit && !planted(Bug::WaitsForTheDead);
            if in_vain || planted(Bug::NeverWaits) || missing.is_empty() && !waits_for_first {
                free.push((origin, waiting.status, missing));
            }
        }
        if free.is_empty() {
            return Vec::new();
        }
        let workers = self.workers(origins);
        let mut released = Vec::new();
        for (origin, status, missing) in free {
            self.waiting.remove(&origin);
            for late in missing {
                self.in_vain += 1;
                self.known.entry(late).or_default().late = TIMES_IN_TIME;
            }
            if status.phase() > self.gone {
                self.gone = status.phase();
                self.since = 0;
            }
            let order = GoOn {
                round: status.round,
                contribution: (status.round_phase == RoundPhase::Announces)
                    .then(|| self.contribution(origin, status.round, workers, origins)),
                newest: self.newest,
                workers,
            };
            released.push((origin, order));
        }
        released
    }

    /// Returns the contribution factor of a worker in a round (the fraction of its difference that it emits), from the
    /// losses that this node knows. If nodes know different losses, the workers' factors do not add up to one, and the
    /// round's step is a little longer or shorter.
    fn contribution(
        &self,
        origin: OriginId,
        round: u64,
        workers: u32,
        origins: &BTreeMap<OriginId, OriginInfo>,
    ) -> Contribution {
        let heard = |info: &&OriginInfo| self.counts(info) && !self.silent.contains_key(&info.node);
        let told = origins.values().filter(heard).filter_map(|info| {
            let (of_round, loss) = self.known.get(&info.origin)?.told?;
            Some(AnnouncedLoss {
                origin: info.origin,
                slot: info.slot,
                loss,
                is_of_round: of_round >= round,
            })
        });
        let told: Vec<AnnouncedLoss> = told.collect();
        match self.weighting {
            RoundWeighting::Mean => Contribution::of_one_in(workers),
            RoundWeighting::Weighted => contributions::by_loss(origin, &told, workers),
            RoundWeighting::Best => contributions::of_the_best(origin, &told),
            RoundWeighting::First => contributions::of_the_first(origin, &told),
        }
    }

    /// The workers that worker `me` waits for at the barrier: those that have not reached its phase of the round yet.
    fn missing<'a>(
        &'a self,
        me: OriginId,
        phase: u64,
        begins: bool,
        origins: &'a BTreeMap<OriginId, OriginInfo>,
    ) -> impl Iterator<Item = OriginId> + 'a {
        let others = origins
            .values()
            .filter(move |info| info.origin != me && self.counts(info));
        let waited_for = others.filter(|info| !self.silent.contains_key(&info.node) || planted(Bug::WaitsForTheDead));
        waited_for
            .filter(move |info| match self.known.get(&info.origin) {
                Some(known) => known.status.phase() < phase && known.late == 0 && !known.returns,
                // A worker without any round is waited for only at the beginning of the run. One that joins later
                // counts as soon as it has reached a round.
                None => begins,
            })
            .map(|info| info.origin)
    }

    /// The nodes that can add up a round together, in the order of their workers' slots (numbers in the run). Each of
    /// them is within reach, and has a worker that has reached a round before and is neither late nor rejoining.
    pub(super) fn members(&self, origins: &BTreeMap<OriginId, OriginInfo>) -> Vec<NodeId> {
        let mut first: BTreeMap<NodeId, u32> = BTreeMap::new();
        for info in origins.values().filter(|info| self.is_waited_for(info)) {
            let slot = first.entry(info.node).or_insert(info.slot);
            *slot = info.slot.min(*slot);
        }
        let mut members: Vec<NodeId> = first.keys().copied().collect();
        members.sort_by_key(|node| (first[node], *node));
        members
    }

    /// The workers that are in the same round as `one`, with their nodes, in the order of their slots (numbers in the
    /// run).
    pub(super) fn in_round_with(
        &self,
        one: OriginId,
        origins: &BTreeMap<OriginId, OriginInfo>,
    ) -> Vec<(OriginId, NodeId)> {
        let round = |origin: OriginId| self.known.get(&origin).map_or(0, |known| known.status.round);
        let is_there = |info: &&OriginInfo| self.counts(info) && !self.silent.contains_key(&info.node);
        let mut with: Vec<&OriginInfo> = origins
            .values()
            .filter(is_there)
            .filter(|info| round(info.origin) == round(one))
            .collect();
        with.sort_by_key(|info| (info.slot, info.origin));
        with.into_iter().map(|info| (info.origin, info.node)).collect()
    }

    fn is_waited_for(&self, info: &OriginInfo) -> bool {
        let known = self.known.get(&info.origin);
        let in_time = known.is_some_and(|known| known.late == 0 && !known.returns);
        self.counts(info) && in_time && !self.silent.contains_key(&info.node)
    }

    /// Returns true if a node's workers have all emitted their contributions to a round. Workers for which the others
    /// do not wait are not counted.
    pub(super) fn has_come(&self, node: NodeId, round: u64, origins: &BTreeMap<OriginId, OriginInfo>) -> bool {
        let phase = OriginStatus {
            round,
            ..OriginStatus::default()
        }
        .phase();
        let mut own = origins
            .values()
            .filter(|info| info.node == node && self.is_waited_for(info));
        own.all(|info| {
            self.known
                .get(&info.origin)
                .is_some_and(|known| known.status.phase() >= phase)
        })
    }

    /// Ticks after which nodes give up adding up a round's batches. This limit is below the barrier's timeout, so that
    /// time remains to send the batches one by one instead.
    pub(super) fn patience_for_bundles(&self) -> u32 {
        (self.late_after() / 4 * 3).max(1)
    }

    /// Returns true if a worker takes part in rounds: it has a slot (a number in the run), is not idle and has not
    /// ended. Its node may be silent.
    fn counts(&self, info: &OriginInfo) -> bool {
        let known = self.known.get(&info.origin);
        let is_idle = known.is_some_and(|known| known.status.round_phase == RoundPhase::Idle);
        info.slot != OriginInfo::NO_SLOT && info.ended.is_none() && !is_idle && self.parts.contains_key(&info.node)
    }

    /// Returns true if a founder (a node with which the run begins) has not announced all its workers yet.
    fn is_incomplete(&self, origins: &BTreeMap<OriginId, OriginInfo>) -> bool {
        let mut founders = self.parts.iter().filter(|(_, part)| part.is_founder);
        founders.any(|(node, part)| {
            let of_node = |info: &&OriginInfo| info.node == *node && info.slot != OriginInfo::NO_SLOT;
            !self.silent.contains_key(node) && origins.values().filter(of_node).count() < part.workers
        })
    }

    /// Number of workers that make the next round together.
    pub fn workers(&self, origins: &BTreeMap<OriginId, OriginInfo>) -> u32 {
        let mut named: BTreeMap<NodeId, usize> = BTreeMap::new();
        for info in origins.values().filter(|info| self.counts(info)) {
            *named.entry(info.node).or_default() += 1;
        }
        let of_node = |(node, part): (&NodeId, &Participation)| {
            let is_heard = |&ticks: &u32| ticks < self.patience.counted;
            if !self.silent.get(node).is_none_or(is_heard) {
                0
            } else if part.is_founder && self.newest == 0 {
                part.workers
            } else {
                named.get(node).copied().unwrap_or_default().min(part.workers)
            }
        };
        self.parts.iter().map(of_node).sum::<usize>().max(1) as u32
    }
}

#[cfg(test)]
mod tests;
