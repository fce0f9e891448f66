//! What workers wait for, where the strategy has rounds: that the others have come to the same one.
//!
//! Whether somebody is waited for decides how long a step takes and how large it is, and nothing else: a replica is the sum
//! of its batches, whoever waited for whom. So views of who lives may differ, and every wait has a bound.
//!
//! Where contributions follow losses, a round has two phases: all tell their losses, and then let out the contributions that
//! follow from them. Each is waited for.
//!
//! The barrier cannot hold itself up: of those who wait, the ones in the lowest phase wait for somebody who does not.

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

/// How long others are waited for, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Those who are late, at least; longer where rounds take longer.
    pub late: u32,
    /// All with whom the run begins, until each has made its first batch.
    pub first: u32,
    /// Ticks for which workers of a silent node still count towards the average.
    pub counted: u32,
}

impl Patience {
    /// In a run whose exchange ticks twenty times a second.
    pub const DEFAULT: Self = Self {
        late: 40,
        first: 600,
        counted: 1200,
    };
}

/// A worker is late if its round takes this many times longer than this node's own.
const PACES: u32 = 3;
/// Who was late is waited for again when it has come in time so often.
const TIMES_IN_TIME: u32 = 2;

/// Labels further ahead than this are nobody's: no run makes so many rounds.
const LEAP_MAX: u64 = 1 << 32;

/// What is known of one origin's rounds.
#[derive(Clone, Copy, Debug, Default)]
struct OriginRounds {
    status: OriginStatus,
    /// Ticks since it last came to a round.
    age: u32,
    /// It was waited for in vain, and has to come in time so often before it is waited for again.
    late: u32,
    /// It was idle before the round that it has come to. It has not heard of the newest one, and nobody waits until it has.
    returns: bool,
    /// The loss that it told last, and of which round.
    told: Option<(u64, f32)>,
}

/// A node's part in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Participation {
    workers: usize,
    is_founder: bool,
}

/// A worker of this node that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// How far it has come.
    status: OriginStatus,
    ticks: u32,
}

/// Who has come to which round.
#[derive(Clone, Debug)]
pub struct Barrier {
    me: NodeId,
    patience: Patience,
    weighting: RoundWeighting,
    /// Who takes part. More origins than a node has workers are somebody's inventions, and do not count.
    parts: BTreeMap<NodeId, Participation>,
    known: BTreeMap<OriginId, OriginRounds>,
    waiting: BTreeMap<OriginId, Waiting>,
    /// Nodes that are not heard, and for how long.
    silent: BTreeMap<NodeId, u32>,
    newest: u64,
    /// The last phase that this node's workers have gone on from.
    gone: u64,
    /// Ticks since that.
    since: u32,
    /// How long this node's workers took for their last round.
    pace: u32,
    /// How often somebody was waited for in vain.
    in_vain: u64,
}

impl Barrier {
    /// Before the first round of a run, on one of those who take part.
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

    /// A node takes part, too.
    pub(super) fn joins(&mut self, node: NodeId, workers: usize) {
        self.parts.entry(node).or_insert(Participation {
            workers,
            is_founder: false,
        });
    }

    /// The newest round that anybody has come to.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// How often somebody was waited for in vain.
    #[must_use]
    pub fn in_vain(&self) -> u64 {
        self.in_vain
    }

    /// A batch is applied that says how its origin stands, and, if it came by itself, a loss.
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
        // The contribution that follows a loss says nothing of how long a round takes.
        let has_trained = before.round_phase != RoundPhase::Announces;
        // By time, not by the label: who is behind has a label that was the newest when its round began.
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

    /// How long others are waited for.
    pub(super) fn late_after(&self) -> u32 {
        self.patience.late.max(PACES.saturating_mul(self.pace))
    }

    /// These nodes are not heard.
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

    /// Workers of this node that need wait no longer.
    pub(super) fn release(&mut self, origins: &BTreeMap<OriginId, OriginInfo>) -> Vec<(OriginId, GoOn)> {
        // Origins that have ended wait for nobody.
        self.waiting
            .retain(|origin, _| origins.get(origin).is_some_and(|info| info.ended.is_none()));
        let mut free = Vec::new();
        for (&origin, waiting) in &self.waiting {
            // All with whom the run begins are waited for by each other.
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

    /// The contribution of one of so many workers that has told its loss of a round, by those that are known here. Where views
    /// differ, contributions do not add up to one, and a step is a little longer or shorter.
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

    /// Those whose round is waited for, and has not come.
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
                // Who comes later is waited for as soon as it has come to a round.
                None => begins,
            })
            .map(|info| info.origin)
    }

    /// The nodes that can add up a round together, in the order of their workers' places: each is heard, and has a worker
    /// that has come to a round before and is waited for.
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

    /// The workers that are in the same round as one, in the order of their places, with their nodes.
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

    /// Whether all workers of a node that are waited for have let out their contributions of a round.
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

    /// For how long a round may take to be added up: there is to be time left for its batches to come singly.
    pub(super) fn patience_for_bundles(&self) -> u32 {
        (self.late_after() / 4 * 3).max(1)
    }

    /// Whether an origin takes part in rounds, heard or not.
    fn counts(&self, info: &OriginInfo) -> bool {
        let known = self.known.get(&info.origin);
        let is_idle = known.is_some_and(|known| known.status.round_phase == RoundPhase::Idle);
        info.slot != OriginInfo::NO_SLOT && info.ended.is_none() && !is_idle && self.parts.contains_key(&info.node)
    }

    /// Whether some with whom the run begins have not named all their workers yet.
    fn is_incomplete(&self, origins: &BTreeMap<OriginId, OriginInfo>) -> bool {
        let mut founders = self.parts.iter().filter(|(_, part)| part.is_founder);
        founders.any(|(node, part)| {
            let of_node = |info: &&OriginInfo| info.node == *node && info.slot != OriginInfo::NO_SLOT;
            !self.silent.contains_key(node) && origins.values().filter(of_node).count() < part.workers
        })
    }

    /// How many workers make the next round together.
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
