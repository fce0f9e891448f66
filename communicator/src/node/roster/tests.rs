//! Tests of names, silence, rumours and dialling, second by second.

use super::*;
use crate::small_plan::small_node as info;
use crate::timing::Timing;

const SECOND: Duration = Duration::from_secs(1);

fn roster(me: u64) -> Roster {
    Roster::new(NodeId(me), Timing::DEFAULT.membership)
}

/// Dials all members of a roster that are due. Returns those with which there is no session.
fn due(roster: &mut Roster, now: Duration) -> Vec<NodeInfo> {
    let due = roster.take_due(now).into_iter();
    due.filter(|due| !due.is_probe).map(|due| due.info).collect()
}

/// Records in a roster that dialling a node has failed.
fn failed(roster: &mut Roster, id: u64, now: Duration) {
    assert_eq!(roster.was_dialled(NodeId(id), DialOutcome::Failed, now), None);
}

#[test]
fn silence_is_noticed_within_three_seconds_and_beats_bring_back() {
    let mut roster = roster(5);
    assert_eq!(roster.beat(info(7), SECOND), Some(MemberChange::Alive(info(7))));
    assert_eq!(roster.beat(info(7), 2 * SECOND), None);
    assert!(roster.tick(4 * SECOND).is_empty() && roster.members().all(|member| member.alive));
    assert_eq!(roster.tick(5 * SECOND), [MemberChange::Silent(NodeId(7))]);
    assert!(roster.tick(6 * SECOND).is_empty(), "a silence is reported once");
    assert_eq!(roster.beat(info(7), 7 * SECOND), Some(MemberChange::Alive(info(7))));
}

#[test]
fn a_broken_session_is_noticed_soon_and_may_be_replaced() {
    let mut roster = roster(5);
    roster.linked(NodeId(7), SECOND);
    roster.beat(info(7), 10 * SECOND);
    assert!(
        due(&mut roster, SECOND * 100).is_empty(),
        "a node with a session is not dialled, even if the session came before the first beat"
    );
    failed(&mut roster, 7, 10 * SECOND);
    roster.unlinked(NodeId(7), false, 10 * SECOND);
    assert!(roster.tick(10 * SECOND + SECOND / 2).is_empty());
    assert_eq!(due(&mut roster, 11 * SECOND), [info(7)]);
    assert_eq!(roster.tick(12 * SECOND), [MemberChange::Silent(NodeId(7))]);
    roster.beat(info(7), 13 * SECOND);
    roster.unlinked(NodeId(7), false, 13 * SECOND);
    roster.beat(info(7), 13 * SECOND + SECOND / 2);
    assert!(roster.tick(15 * SECOND).is_empty());
}

#[test]
fn who_is_heard_of_is_dialled_with_growing_pauses() {
    let mut roster = roster(5);
    roster.heard_of(info(7), SECOND);
    roster.heard_of(info(3), SECOND);
    roster.heard_of(info(5), SECOND);
    assert_eq!(
        due(&mut roster, SECOND),
        [info(7)],
        "the node with the lower id dials first"
    );
    assert!(
        due(&mut roster, SECOND * 19 / 10).is_empty(),
        "the dial is still under way"
    );
    failed(&mut roster, 7, 2 * SECOND);
    assert_eq!(due(&mut roster, 2 * SECOND), [info(7), info(3)]);
    let mut dialled = 0;
    for tenth in 0..600 {
        for id in [3, 7] {
            failed(&mut roster, id, 2 * SECOND);
        }
        dialled += due(&mut roster, 2 * SECOND + SECOND * tenth / 10).len();
    }
    assert!((10..40).contains(&dialled), "{dialled} attempts in a minute");
}

#[test]
fn who_left_does_not_come_back_by_rumour() {
    let mut roster = roster(5);
    roster.beat(info(7), SECOND);
    assert_eq!(roster.leaves(NodeId(7)), Some(MemberChange::Left(NodeId(7))));
    roster.heard_of(info(7), SECOND);
    assert_eq!(roster.beat(info(7), SECOND), None);
    assert_eq!(roster.members().count(), 0);
}

#[test]
fn the_long_lost_are_forgotten() {
    let mut roster = roster(5);
    roster.beat(info(7), SECOND);
    assert_eq!(roster.tick(10 * SECOND), [MemberChange::Silent(NodeId(7))]);
    assert_eq!(roster.tick(700 * SECOND), [MemberChange::Left(NodeId(7))]);
    assert_eq!(roster.members().count(), 0);
}

#[test]
fn who_takes_part_in_a_run_is_waited_for_while_it_goes_on() {
    let mut roster = roster(5);
    roster.beat(info(7), SECOND);
    roster.take_part(BTreeSet::from([NodeId(5), NodeId(7)]));
    assert_eq!(roster.tick(10 * SECOND), [MemberChange::Silent(NodeId(7))]);
    assert!(roster.tick(80_000 * SECOND).is_empty());
    assert_eq!(
        due(&mut roster, 80_000 * SECOND),
        [info(7)],
        "a silent participant is still dialled"
    );
    roster.take_part(BTreeSet::new());
    assert_eq!(roster.tick(80_001 * SECOND), [MemberChange::Left(NodeId(7))]);
}

#[test]
fn what_was_invented_is_bounded_dialled_a_little_and_soon_forgotten() {
    let invented = MEMBERS_MAX as u64 + 500;
    let mut roster = roster(1);
    for id in 10..10 + invented {
        roster.heard_of(info(id), SECOND);
    }
    assert_eq!(roster.members().count(), MEMBERS_MAX);
    assert_eq!(due(&mut roster, 2 * SECOND).len(), RUMOURS_DIALLED_MAX);
    assert!(
        due(&mut roster, 3 * SECOND).is_empty(),
        "no further rumours are dialled before the first have answered"
    );
    // A node that is really there is dialled, and has a place, whatever rumours there are.
    let real = 10 + invented;
    assert_eq!(
        roster.beat(info(real), 3 * SECOND),
        Some(MemberChange::Alive(info(real)))
    );
    assert_eq!(roster.members().count(), MEMBERS_MAX);
    roster.unlinked(NodeId(real), false, 3 * SECOND);
    assert_eq!(due(&mut roster, 4 * SECOND), [info(real)]);
    roster.beat(info(real), 62 * SECOND);
    assert!(
        roster.tick(62 * SECOND).is_empty(),
        "a rumoured node is forgotten without a report"
    );
    assert_eq!(
        roster.members().map(|one| one.info.id).collect::<Vec<_>>(),
        [NodeId(real)]
    );
}

#[test]
fn the_address_that_has_waited_longest_is_dialled_first() {
    let mut roster = roster(1);
    for id in 10..30 {
        roster.heard_of(info(id), SECOND);
    }
    let mut seen = BTreeSet::new();
    for tick in 0..3 {
        for due in due(&mut roster, 2 * SECOND + tick * SECOND / 100) {
            failed(&mut roster, due.id.0, 2 * SECOND);
            seen.insert(due.id.0);
        }
    }
    assert_eq!(seen, (10..30).collect());
}

#[test]
fn a_false_rumour_does_not_keep_the_true_one_out() {
    let mut roster = roster(1);
    let elsewhere = NodeInfo {
        address: "192.0.2.1:9".parse().unwrap(),
        ..info(7)
    };
    roster.heard_of(elsewhere.clone(), SECOND);
    roster.heard_of(info(7), SECOND);
    assert_eq!(due(&mut roster, SECOND), [info(7)]);
    roster.beat(info(7), SECOND);
    roster.heard_of(elsewhere, SECOND);
    assert!(
        roster.members().all(|member| member.info == &info(7)),
        "a node's own beat outweighs a rumour about its address"
    );
}

fn named(id: u64) -> NodeInfo {
    NodeInfo {
        name: "desk".into(),
        ..info(id)
    }
}

/// Returns a roster that has reached node 7, called "desk", and whose session with it was then ended by node 7's
/// machine.
fn broken() -> Roster {
    let mut roster = roster(5);
    roster.beat(named(7), SECOND);
    roster.linked(NodeId(7), SECOND);
    let probe = roster.take_due(3 * SECOND);
    assert!(
        probe.len() == 1 && probe[0].is_probe,
        "a node that dialled this one is probed"
    );
    roster.was_dialled(NodeId(7), DialOutcome::Reached, 3 * SECOND);
    assert!(
        roster.take_due(60 * SECOND).is_empty(),
        "a node that was reached is not probed again"
    );
    roster.beat(named(7), 60 * SECOND);
    roster.unlinked(NodeId(7), true, 60 * SECOND);
    assert_eq!(
        due(&mut roster, 60 * SECOND),
        [named(7)],
        "a node whose session broke is dialled at once"
    );
    roster
}

#[test]
fn a_process_that_has_ended_is_known_within_two_seconds_and_a_beat_revokes_it() {
    let mut roster = broken();
    assert_eq!(roster.was_dialled(NodeId(7), DialOutcome::Refused, 60 * SECOND), None);
    assert!(due(&mut roster, 60 * SECOND + SECOND / 2).is_empty());
    assert_eq!(due(&mut roster, 61 * SECOND), [named(7)]);
    let dead = roster.was_dialled(NodeId(7), DialOutcome::Refused, 61 * SECOND);
    assert_eq!(dead, Some(MemberChange::Dead(NodeId(7))));
    assert!(roster.members().all(|member| !member.alive));
    assert_eq!(
        roster.was_dialled(NodeId(7), DialOutcome::Refused, 63 * SECOND),
        None,
        "a death is reported once"
    );
    assert_eq!(roster.beat(named(7), 64 * SECOND), Some(MemberChange::Alive(named(7))));
}

#[test]
fn another_process_at_the_address_of_a_broken_session_proves_the_end_of_the_first() {
    let mut roster = broken();
    let dead = roster.was_dialled(NodeId(7), DialOutcome::AnotherKey, 60 * SECOND);
    assert_eq!(dead, Some(MemberChange::Dead(NodeId(7))));
    assert_eq!(roster.beat(named(8), 61 * SECOND), Some(MemberChange::Alive(named(8))));
    assert_eq!(roster.tick(61 * SECOND), [MemberChange::Succeeded(NodeId(7))]);
}

#[test]
fn a_name_belongs_to_the_living_and_passes_on_from_the_dead() {
    let mut roster = roster(5);
    roster.beat(named(7), SECOND);
    assert_eq!(roster.namesake(&named(7)), None, "a node is not its own namesake");
    assert_eq!(roster.namesake(&named(8)), Some(&named(7)));
    assert_eq!(roster.namesake(&info(8)), None);
    // A node that was only heard of does not count as a bearer of its name.
    roster.heard_of(named(9), SECOND);
    roster.tick(10 * SECOND);
    assert_eq!(roster.namesake(&named(8)), None, "a silent node does not keep its name");
    roster.beat(named(8), 10 * SECOND);
    assert!(
        roster.tick(11 * SECOND).is_empty(),
        "a new node with the name does not evict the silent one at once"
    );
    assert!(roster.has_met(NodeId(7)) && !roster.has_met(NodeId(9)));
    for second in 11..40 {
        roster.beat(named(8), second * SECOND);
    }
    assert_eq!(roster.tick(40 * SECOND), [MemberChange::Succeeded(NodeId(7))]);
    assert!(roster.has_left(NodeId(7)) && !roster.has_left(NodeId(9)));
    assert_eq!(
        roster.beat(named(7), 41 * SECOND),
        None,
        "a node that has left does not come back"
    );
    let there: Vec<u64> = roster.members().map(|one| one.info.id.0).collect();
    assert_eq!(there, [8, 9]);
}

#[test]
fn what_a_node_does_is_its_own_word() {
    let mut roster = roster(5);
    roster.beat(info(7), SECOND);
    assert!(roster.members().all(|member| member.phase == Phase::Ended));
    roster.does(NodeId(7), Phase::Training);
    roster.does(NodeId(8), Phase::Training);
    assert!(roster.members().all(|member| member.phase == Phase::Training));
}
