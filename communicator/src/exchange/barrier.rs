//! What workers wait for, where the strategy has rounds: that the others have come to the same one.
//!
//! Whether somebody is waited for decides how long a step takes and how large it is, and nothing else: a replica is the sum
//! of its batches, whoever waited for whom. So views of who lives may differ, and every wait has a bound.
//!
//! The barrier cannot hold itself up: of those who wait, the ones in the lowest round wait for somebody who does not.

use std::collections::{BTreeMap, BTreeSet};

use protocol::batch::Standing;
use protocol::ids::{NodeId, OriginId};
use protocol::wire::attach::GoOn;
use protocol::wire::link::OriginInfo;
use protocol::wire::run_plan::{Participant, RunPlan};

use super::planted::{Bug, planted};

/// How long others are waited for, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Those who are late, at least; longer where rounds take longer.
    pub late: u32,
    /// All with whom the run begins, until each has made its first batch.
    pub first: u32,
    /// Those of silent nodes still count among the workers for so long.
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

/// Others are late who take so many times as long as this node's own worker took for its steps.
const PACES: u32 = 3;
/// Who was late is waited for again when it has come in time so often.
const TIMES_IN_TIME: u32 = 2;

/// Labels further ahead than this are nobody's: no run makes so many rounds.
const LEAP_MAX: u64 = 1 << 32;

/// What is known of one origin's rounds.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    standing: Standing,
    /// Ticks since it last came to a round.
    age: u32,
    /// It was waited for in vain, and has to come in time so often before it is waited for again.
    late: u32,
    /// It was idle before the round that it has come to. It has not heard of the newest one, and nobody waits until it has.
    returns: bool,
}

/// A node's part in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    workers: usize,
    is_founder: bool,
}

/// A worker of this node that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    round: u64,
    ticks: u32,
}

/// Who has come to which round.
#[derive(Clone, Debug)]
pub struct Barrier {
    me: NodeId,
    patience: Patience,
    /// Who takes part. More origins than a node has workers are somebody's inventions, and do not count.
    parts: BTreeMap<NodeId, Part>,
    known: BTreeMap<OriginId, Known>,
    waiting: BTreeMap<OriginId, Waiting>,
    /// Nodes that are not heard, and for how long.
    silent: BTreeMap<NodeId, u32>,
    newest: u64,
    /// The last round that this node's workers have gone on from.
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
        let part = |one: &Participant| Part {
            workers: one.workers,
            is_founder: !one.guest,
        };
        Self {
            me,
            patience,
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
        self.parts.entry(node).or_insert(Part {
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

    /// A batch is applied that says how its origin stands.
    pub(super) fn applied(&mut self, origin: OriginId, standing: Standing, is_own: bool) {
        let in_time = self.late_after();
        let round = standing.round.min(self.newest.saturating_add(LEAP_MAX));
        let known = self.known.entry(origin).or_default();
        let before = std::mem::replace(&mut known.standing, Standing { round, ..standing });
        if round <= before.round {
            return;
        }
        self.newest = self.newest.max(round);
        // By time, not by the label: who is behind has a label that was the newest when its round began.
        if std::mem::take(&mut known.age) <= in_time {
            known.late = known.late.saturating_sub(1);
        }
        known.returns = before.idle;
        if is_own {
            if before.round > 0 && !before.idle {
                self.pace = self.since;
            }
            self.waiting.insert(origin, Waiting { round, ticks: 0 });
        }
    }

    /// How long others are waited for.
    fn late_after(&self) -> u32 {
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
            let begins = waiting.round == 1 && self.parts.get(&self.me).is_some_and(|part| part.is_founder);
            let missing: Vec<OriginId> = self.missing(origin, waiting.round, begins, origins).collect();
            let waits_for_first = begins && self.is_incomplete(origins);
            let limit = if begins { self.patience.first } else { self.late_after() };
            let in_vain = waiting.ticks >= limit && !planted(Bug::WaitsForTheDead);
            if in_vain || planted(Bug::NeverWaits) || missing.is_empty() && !waits_for_first {
                free.push((origin, waiting.round, missing));
            }
        }
        let workers = self.workers(origins);
        let mut released = Vec::new();
        for (origin, round, missing) in free {
            self.waiting.remove(&origin);
            for late in missing {
                self.in_vain += 1;
                self.known.entry(late).or_default().late = TIMES_IN_TIME;
            }
            if round > self.gone {
                self.gone = round;
                self.since = 0;
            }
            let newest = self.newest;
            released.push((origin, GoOn { round, newest, workers }));
        }
        released
    }

    /// Those whose round is waited for, and has not come.
    fn missing<'a>(
        &'a self,
        me: OriginId,
        round: u64,
        begins: bool,
        origins: &'a BTreeMap<OriginId, OriginInfo>,
    ) -> impl Iterator<Item = OriginId> + 'a {
        let others = origins
            .values()
            .filter(move |info| info.origin != me && self.counts(info));
        let waited_for = others.filter(|info| !self.silent.contains_key(&info.home) || planted(Bug::WaitsForTheDead));
        waited_for
            .filter(move |info| match self.known.get(&info.origin) {
                Some(known) => known.standing.round < round && known.late == 0 && !known.returns,
                // Who comes later is waited for as soon as it has come to a round.
                None => begins,
            })
            .map(|info| info.origin)
    }

    /// Whether an origin takes part in rounds, heard or not.
    fn counts(&self, info: &OriginInfo) -> bool {
        let is_idle = self.known.get(&info.origin).is_some_and(|known| known.standing.idle);
        info.slot != OriginInfo::NO_SLOT && info.ended.is_none() && !is_idle && self.parts.contains_key(&info.home)
    }

    /// Whether some with whom the run begins have not named all their workers yet.
    fn is_incomplete(&self, origins: &BTreeMap<OriginId, OriginInfo>) -> bool {
        let mut founders = self.parts.iter().filter(|(_, part)| part.is_founder);
        founders.any(|(node, part)| {
            let of_node = |info: &&OriginInfo| info.home == *node && info.slot != OriginInfo::NO_SLOT;
            !self.silent.contains_key(node) && origins.values().filter(of_node).count() < part.workers
        })
    }

    /// How many workers make the next round together.
    pub fn workers(&self, origins: &BTreeMap<OriginId, OriginInfo>) -> u32 {
        let mut named: BTreeMap<NodeId, usize> = BTreeMap::new();
        for info in origins.values().filter(|info| self.counts(info)) {
            *named.entry(info.home).or_default() += 1;
        }
        let of_node = |(node, part): (&NodeId, &Part)| {
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
mod tests {
    use protocol::job::JobDraft;
    use protocol::model::Shape;
    use protocol::wire::attach::DataInfo;

    use super::*;

    const PATIENCE: Patience = Patience {
        late: 4,
        first: 20,
        counted: 10,
    };
    const OWN: OriginId = OriginId(1);

    /// One worker on each of some nodes, the first of which is this one.
    struct Cluster {
        barrier: Barrier,
        origins: BTreeMap<OriginId, OriginInfo>,
    }

    impl Cluster {
        fn new(count: u64) -> Self {
            let info = |id| OriginInfo {
                origin: OriginId(id),
                home: NodeId(id),
                slot: id as u32,
                ended: None,
            };
            let participant = |id| Participant {
                node: NodeId(id),
                name: format!("n{id}"),
                address: "127.0.0.1:1".parse().unwrap(),
                workers: 1,
                guest: false,
            };
            let plan = RunPlan {
                job: Box::new(JobDraft::default().resolve().unwrap()),
                data: DataInfo {
                    hash: [0; 32],
                    input: Shape::Flat(3),
                    classes: 2,
                    train: 10,
                    test: 2,
                },
                participants: (1..=count).map(participant).collect(),
                resumed: None,
            };
            Self {
                barrier: Barrier::new(NodeId(1), PATIENCE, &plan),
                origins: (1..=count).map(|id| (OriginId(id), info(id))).collect(),
            }
        }

        /// An origin comes to a round; whether this node's worker may go on.
        fn comes(&mut self, origin: u64, round: u64) -> Option<GoOn> {
            self.stands(
                origin,
                Standing {
                    round,
                    ..Standing::default()
                },
            )
        }

        fn stands(&mut self, origin: u64, standing: Standing) -> Option<GoOn> {
            self.barrier.applied(OriginId(origin), standing, origin == OWN.0);
            self.released()
        }

        fn released(&mut self) -> Option<GoOn> {
            let released = self.barrier.release(&self.origins);
            released.first().map(|&(origin, order)| {
                assert_eq!(origin, OWN);
                order
            })
        }

        /// The ticks until this node's worker may go on.
        fn waits(&mut self) -> u32 {
            (1..1000)
                .find(|_| {
                    self.barrier.tick();
                    self.released().is_some()
                })
                .unwrap()
        }
    }

    #[test]
    fn a_worker_goes_on_when_all_others_have_come_to_its_round() {
        let mut cluster = Cluster::new(3);
        assert_eq!(cluster.comes(2, 1), None);
        assert_eq!(cluster.comes(1, 1), None);
        let (round, newest, workers) = (1, 1, 3);
        assert_eq!(cluster.comes(3, 1), Some(GoOn { round, newest, workers }));
        assert_eq!(cluster.released(), None, "it is said once");
        // Others may be a round further; one more batch of the same round is not one more round.
        assert_eq!(cluster.comes(3, 2), None);
        assert_eq!(cluster.comes(2, 1), None);
        assert_eq!(cluster.comes(1, 2), None);
        assert!(cluster.comes(2, 2).is_some());
    }

    #[test]
    fn the_first_round_waits_for_workers_that_are_not_named_yet() {
        let mut cluster = Cluster::new(2);
        let other = cluster.origins.remove(&OriginId(2)).unwrap();
        assert_eq!(cluster.comes(1, 1), None);
        cluster.barrier.tick();
        assert_eq!(cluster.released(), None);
        cluster.origins.insert(other.origin, other);
        assert_eq!(cluster.released(), None);
        assert!(cluster.comes(2, 1).is_some());
        // And not for ever.
        let mut cluster = Cluster::new(2);
        cluster.origins.remove(&OriginId(2));
        cluster.comes(1, 1);
        assert_eq!(cluster.waits(), PATIENCE.first);
    }

    #[test]
    fn who_is_silent_idle_or_at_its_end_is_not_waited_for() {
        let mut cluster = Cluster::new(5);
        for origin in 1..=5 {
            cluster.comes(origin, 1);
        }
        cluster.barrier.hears(&BTreeSet::from([NodeId(3)]));
        cluster.stands(
            4,
            Standing {
                idle: true,
                round: 1,
                ..Standing::default()
            },
        );
        cluster.origins.get_mut(&OriginId(5)).unwrap().ended = Some(9);
        assert_eq!(cluster.comes(2, 2), None);
        // Who is silent may be at work: for a while it counts among those who share.
        assert_eq!(cluster.comes(1, 2).map(|order| order.workers), Some(3));
        for _ in 0..PATIENCE.counted {
            cluster.barrier.tick();
        }
        cluster.comes(2, 3);
        assert_eq!(cluster.comes(1, 3).map(|order| order.workers), Some(2));
        // It is heard again.
        cluster.barrier.hears(&BTreeSet::new());
        cluster.comes(2, 4);
        assert_eq!(cluster.comes(1, 4), None);
        assert_eq!(cluster.comes(3, 4).map(|order| order.workers), Some(3));
    }

    #[test]
    fn who_was_late_is_waited_for_again_when_it_has_come_in_time_twice() {
        let mut cluster = Cluster::new(3);
        for origin in 1..=3 {
            cluster.comes(origin, 1);
        }
        cluster.comes(2, 2);
        cluster.comes(1, 2);
        assert_eq!(cluster.waits(), PATIENCE.late);
        assert_eq!(cluster.barrier.in_vain(), 1);
        // It costs nobody anything from now on.
        cluster.comes(2, 3);
        assert!(cluster.comes(1, 3).is_some());
        // What comes after so long is not in time.
        cluster.barrier.tick();
        cluster.comes(3, 2);
        // It comes as often as the others, a little behind them and so with labels that are gone.
        for round in 4..=5 {
            cluster.comes(2, round);
            assert!(cluster.comes(1, round).is_some());
            cluster.barrier.tick();
            cluster.comes(3, round - 1);
        }
        cluster.comes(2, 6);
        assert_eq!(cluster.comes(1, 6), None);
        assert!(cluster.comes(3, 6).is_some());
    }

    #[test]
    fn long_rounds_are_waited_for_longer_but_not_those_in_which_nobody_trained() {
        for idle in [false, true] {
            let mut cluster = Cluster::new(2);
            for origin in 1..=2 {
                cluster.comes(origin, 1);
            }
            cluster.stands(1, resting(idle, 1));
            for _ in 0..30 {
                cluster.barrier.tick();
            }
            cluster.comes(1, 2);
            assert_eq!(cluster.waits(), if idle { PATIENCE.late } else { PACES * 30 });
        }
    }

    fn resting(idle: bool, round: u64) -> Standing {
        Standing {
            idle,
            round,
            ..Standing::default()
        }
    }

    #[test]
    fn who_was_idle_is_waited_for_when_it_has_heard_of_the_newest_round() {
        let mut cluster = Cluster::new(2);
        for origin in 1..=2 {
            cluster.comes(origin, 1);
        }
        cluster.stands(2, resting(true, 1));
        for round in 2..9 {
            assert_eq!(cluster.comes(1, round).map(|order| order.workers), Some(1));
        }
        // Its first round has an old label.
        cluster.comes(2, 2);
        assert_eq!(cluster.comes(1, 9).map(|order| order.workers), Some(2));
        cluster.comes(2, 9);
        assert_eq!(cluster.comes(1, 10), None);
        assert!(cluster.comes(2, 10).is_some());
    }

    #[test]
    fn a_label_from_nowhere_and_invented_origins_hold_nobody_up() {
        let mut cluster = Cluster::new(2);
        for origin in 1..=2 {
            cluster.comes(origin, 1);
        }
        cluster.comes(2, u64::MAX);
        let newest = cluster.barrier.newest();
        assert_eq!(newest, 1 + LEAP_MAX);
        for own in newest..newest + 3 {
            cluster.comes(1, own);
            cluster.comes(2, u64::MAX);
            assert!(cluster.barrier.waiting.is_empty(), "{own}");
        }
        for id in 100..4000 {
            let info = OriginInfo {
                origin: OriginId(id),
                home: NodeId(id % 3),
                slot: 5,
                ended: None,
            };
            cluster.origins.insert(info.origin, info);
        }
        assert_eq!(cluster.comes(1, newest + 3).map(|order| order.workers), Some(2));
    }

    #[test]
    fn who_comes_later_is_waited_for_from_its_first_round_on() {
        let mut cluster = Cluster::new(2);
        for round in 1..=3 {
            cluster.comes(2, round);
            assert!(cluster.comes(1, round).is_some());
        }
        let late = OriginInfo {
            origin: OriginId(9),
            home: NodeId(9),
            slot: 70,
            ended: None,
        };
        cluster.origins.insert(late.origin, late);
        cluster.barrier.joins(NodeId(9), 1);
        cluster.comes(2, 4);
        assert_eq!(cluster.comes(1, 4).map(|order| order.workers), Some(3));
        cluster.comes(9, 4);
        cluster.comes(2, 5);
        assert_eq!(cluster.comes(1, 5), None);
        assert!(cluster.comes(9, 5).is_some());
    }
}
