//! Tests of the barrier: the workers that others wait for, and for how long.

use super::*;
use crate::small_plan::small_plan;

const PATIENCE: Patience = Patience {
    late: 4,
    first: 20,
    counted: 10,
};
const OWN: OriginId = OriginId(1);

/// A barrier of node 1 in a run of several nodes with one worker each.
struct Cluster {
    barrier: Barrier,
    origins: BTreeMap<OriginId, OriginInfo>,
}

impl Cluster {
    fn new(count: u64) -> Self {
        let info = |id| OriginInfo {
            origin: OriginId(id),
            node: NodeId(id),
            slot: id as u32,
            ended: None,
        };
        Self {
            barrier: Barrier::new(NodeId(1), PATIENCE, &small_plan(count)),
            origins: (1..=count).map(|id| (OriginId(id), info(id))).collect(),
        }
    }

    /// Lets an origin reach a round. Returns the order for this node's worker if it may go on.
    fn comes(&mut self, origin: u64, round: u64) -> Option<GoOn> {
        self.stands(
            origin,
            OriginStatus {
                round,
                ..OriginStatus::default()
            },
        )
    }

    fn stands(&mut self, origin: u64, status: OriginStatus) -> Option<GoOn> {
        self.tells(origin, status, 1.0)
    }

    /// Lets an origin reach a round and announce its loss.
    fn announces(&mut self, origin: u64, round: u64, loss: f32) -> Option<GoOn> {
        let status = OriginStatus {
            round_phase: RoundPhase::Announces,
            round,
            ..OriginStatus::default()
        };
        self.tells(origin, status, loss)
    }

    fn tells(&mut self, origin: u64, status: OriginStatus, loss: f32) -> Option<GoOn> {
        let is_own = origin == OWN.0;
        self.barrier.applied(OriginId(origin), status, Some(loss), is_own);
        self.released()
    }

    fn released(&mut self) -> Option<GoOn> {
        let released = self.barrier.release(&self.origins);
        released.first().map(|&(origin, order)| {
            assert_eq!(origin, OWN);
            order
        })
    }

    /// Number of ticks until this node's worker may go on.
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
    assert_eq!(
        cluster.comes(3, 1),
        Some(GoOn {
            round,
            contribution: None,
            newest,
            workers
        })
    );
    assert_eq!(cluster.released(), None, "a round is released only once");
    // Others may be a round ahead; a second batch of the same round does not count as another round.
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
    // The wait has a timeout.
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
        OriginStatus {
            round_phase: RoundPhase::Idle,
            round: 1,
            ..OriginStatus::default()
        },
    );
    cluster.origins.get_mut(&OriginId(5)).unwrap().ended = Some(9);
    assert_eq!(cluster.comes(2, 2), None);
    // A silent node may be at work: for a while its worker counts among those that contribute.
    assert_eq!(cluster.comes(1, 2).map(|order| order.workers), Some(3));
    for _ in 0..PATIENCE.counted {
        cluster.barrier.tick();
    }
    cluster.comes(2, 3);
    assert_eq!(cluster.comes(1, 3).map(|order| order.workers), Some(2));
    // The node is heard again.
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
    // From now on no worker waits for the late one.
    cluster.comes(2, 3);
    assert!(cluster.comes(1, 3).is_some());
    // A round after this tick is too late to be in time.
    cluster.barrier.tick();
    cluster.comes(3, 2);
    // The late worker is now as fast as the others, a little behind them and so with older round numbers.
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

fn resting(idle: bool, round: u64) -> OriginStatus {
    OriginStatus {
        round_phase: if idle {
            RoundPhase::Idle
        } else {
            RoundPhase::Contributes
        },
        round,
        ..OriginStatus::default()
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
    // The worker's first round after it was idle has an old number.
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
            node: NodeId(id % 3),
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
        node: NodeId(9),
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

#[test]
fn shares_that_follow_losses_are_told_when_all_have_told_theirs() {
    for (weighting, own) in [
        (RoundWeighting::Weighted, Contribution::of_one_in(4)),
        (RoundWeighting::Best, Contribution::ALL),
    ] {
        let mut cluster = Cluster::new(2);
        cluster.barrier.weighting = weighting;
        for round in 1..4 {
            assert_eq!(cluster.announces(1, round, 0.5), None);
            let order = cluster.announces(2, round, 1.5).unwrap();
            assert_eq!((order.round, order.contribution), (round, Some(own)));
            // A worker that has announced its loss has not emitted its contribution yet.
            assert_eq!(cluster.comes(1, round), None);
            assert_eq!(cluster.comes(2, round).map(|order| order.contribution), Some(None));
        }
    }
}

#[test]
fn who_has_told_its_loss_and_dies_is_not_waited_for() {
    let mut cluster = Cluster::new(3);
    cluster.barrier.weighting = RoundWeighting::Best;
    cluster.announces(1, 1, 0.5);
    cluster.announces(2, 1, 0.1);
    assert_eq!(
        cluster.announces(3, 1, 0.9).and_then(|order| order.contribution),
        Some(Contribution::NOTHING)
    );
    cluster.comes(3, 1);
    assert_eq!(cluster.comes(1, 1), None);
    cluster.barrier.hears(&BTreeSet::from([NodeId(2)]));
    assert_eq!(cluster.released().map(|order| order.contribution), Some(None));
    // The dead worker's loss no longer counts in comparisons.
    cluster.announces(3, 2, 0.9);
    assert_eq!(
        cluster.announces(1, 2, 0.5).and_then(|order| order.contribution),
        Some(Contribution::ALL)
    );
}

#[test]
fn the_phase_in_which_nobody_trains_does_not_make_anybody_late() {
    let mut cluster = Cluster::new(2);
    cluster.barrier.weighting = RoundWeighting::Weighted;
    cluster.announces(1, 1, 0.5);
    cluster.announces(2, 1, 0.5);
    cluster.comes(1, 1);
    cluster.comes(2, 1);
    for _ in 0..30 {
        cluster.barrier.tick();
    }
    cluster.announces(1, 2, 0.5);
    cluster.announces(2, 2, 0.5);
    // The timeout follows the duration of a round, not the time until all losses were known.
    cluster.comes(1, 2);
    assert_eq!(cluster.waits(), PACES * 30);
}
