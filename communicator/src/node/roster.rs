//! Who is in the cluster, and whether they are alive: a pure core, told what happens and what time it is.
//!
//! A member is alive while its beats come. When they stop, or its session breaks and no other is made at once, it is
//! *away*: it may come back, and is dialled until it is forgotten. One that says that it leaves is gone at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::ids::NodeId;
use protocol::wire::bounds::MEMBERS_MAX;
use protocol::wire::control::NodeInfo;

use crate::timing::MembershipTimes;

/// How many nodes that were only heard of are dialled at a time.
const RUMOURS_DIALLED_MAX: usize = 8;

/// Something that others want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A member that was not known, or was away, is alive.
    Alive(NodeInfo),
    /// A member is silent.
    Away(NodeId),
    /// A member has left, or is forgotten.
    Left(NodeId),
}

/// All members but this node. Times are since some moment that the caller chose.
#[derive(Debug)]
pub(crate) struct Roster {
    me: NodeId,
    times: MembershipTimes,
    members: BTreeMap<NodeId, Member>,
    /// Nodes that there is a session with, known otherwise or not.
    linked: BTreeSet<NodeId>,
    /// Those that said good-bye: rumours of them do not bring them back.
    left: Vec<NodeId>,
    /// Those that are being dialled, and whether they were only heard of.
    dialled: BTreeMap<NodeId, bool>,
    /// Those who take part in this node's run.
    participants: BTreeSet<NodeId>,
}

#[derive(Debug)]
struct Member {
    info: NodeInfo,
    alive: bool,
    /// Whether it was ever heard itself.
    met: bool,
    /// When it was last heard, or first heard of.
    heard: Duration,
    rtt: Option<Duration>,
    dial_at: Duration,
    dial_pause: Duration,
}

/// A member, for people.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemberView<'a> {
    pub(crate) info: &'a NodeInfo,
    /// Whether its beats come.
    pub(crate) alive: bool,
    /// The newest round trip.
    pub(crate) rtt: Option<Duration>,
}

impl Roster {
    /// An empty roster of this node's.
    #[must_use]
    pub(crate) fn new(me: NodeId, times: MembershipTimes) -> Self {
        Self {
            me,
            times,
            members: BTreeMap::new(),
            linked: BTreeSet::new(),
            left: Vec::new(),
            dialled: BTreeMap::new(),
            participants: BTreeSet::new(),
        }
    }

    /// Somebody told of a node. There is room for so many, and nobody has to go for a rumour.
    pub(crate) fn heard_of(&mut self, info: NodeInfo, now: Duration) {
        if info.id == self.me || self.left.contains(&info.id) {
            return;
        }
        if let Some(member) = self.members.get_mut(&info.id) {
            // Where it really is only one of several rumours may know.
            if !member.met {
                member.info = info;
            }
        } else if self.members.len() < MEMBERS_MAX {
            self.enter(info, now);
        }
    }

    fn enter(&mut self, info: NodeInfo, now: Duration) {
        let patience = if self.me < info.id {
            Duration::ZERO
        } else {
            self.times.dial_patience
        };
        let member = Member {
            info,
            alive: false,
            met: false,
            heard: now,
            rtt: None,
            dial_at: now + patience,
            dial_pause: self.times.dial_pause,
        };
        self.members.insert(member.info.id, member);
    }

    /// Makes room for a node that is really there, in place of one that is only heard of.
    fn make_room(&mut self) {
        if self.members.len() >= MEMBERS_MAX {
            let rumour = self.members.iter().find(|(_, member)| !member.met);
            if let Some(id) = rumour.map(|(&id, _)| id) {
                self.members.remove(&id);
            }
        }
    }

    /// A node's own beat has come.
    pub(crate) fn beat(&mut self, info: NodeInfo, now: Duration) -> Option<Change> {
        let id = info.id;
        if !self.members.contains_key(&id) {
            self.make_room();
        }
        self.heard_of(info.clone(), now);
        let member = self.members.get_mut(&id)?;
        member.heard = now;
        member.met = true;
        member.info = info;
        if std::mem::replace(&mut member.alive, true) {
            None
        } else {
            Some(Change::Alive(member.info.clone()))
        }
    }

    /// A beat of ours was answered after this time.
    pub(crate) fn answered(&mut self, id: NodeId, rtt: Duration) {
        if let Some(member) = self.members.get_mut(&id) {
            member.rtt = Some(rtt);
        }
    }

    /// A session with a node is ready.
    pub(crate) fn linked(&mut self, id: NodeId) {
        self.linked.insert(id);
        if let Some(member) = self.members.get_mut(&id) {
            member.dial_pause = self.times.dial_pause;
        }
    }

    /// The last session with a node is gone.
    pub(crate) fn unlinked(&mut self, id: NodeId, now: Duration) {
        self.linked.remove(&id);
        let patience = if self.me < id {
            self.times.dial_pause
        } else {
            self.times.dial_patience
        };
        if let Some(member) = self.members.get_mut(&id) {
            member.dial_at = now + patience;
            member.heard = member
                .heard
                .min((now + self.times.broken_after).saturating_sub(self.times.away_after));
        }
    }

    /// A node said that it leaves.
    pub(crate) fn leaves(&mut self, id: NodeId) -> Option<Change> {
        /// Names of those that left, kept until rumours of them have died down.
        const LEFT_MAX: usize = 256;
        if self.left.len() == LEFT_MAX {
            self.left.remove(0);
        }
        self.left.push(id);
        self.members.remove(&id).map(|_| Change::Left(id))
    }

    /// Who takes part in the run that this node is in.
    pub(crate) fn take_part(&mut self, participants: BTreeSet<NodeId>) {
        self.participants = participants;
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Change> {
        let mut changes = Vec::new();
        for (&id, member) in &mut self.members {
            if member.alive && now.saturating_sub(member.heard) > self.times.away_after {
                member.alive = false;
                changes.push(Change::Away(id));
            }
        }
        self.members.retain(|&id, member| {
            let limit = match (self.participants.contains(&id), member.met) {
                (true, _) => self.times.forget_participant_after,
                (false, true) => self.times.forget_after,
                (false, false) => self.times.forget_rumour_after,
            };
            let kept = member.alive || now.saturating_sub(member.heard) < limit;
            if !kept && member.met {
                changes.push(Change::Left(id));
            }
            kept
        });
        changes
    }

    /// Whom to dial now. Each is named once, and again after a pause that grows; of those that are only heard of, a few at
    /// a time, whoever has waited longest first.
    pub(crate) fn take_due(&mut self, now: Duration) -> Vec<NodeInfo> {
        let Self {
            members,
            linked,
            dialled,
            ..
        } = self;
        let busy = dialled.values().filter(|&&rumour| rumour).count();
        let mut due: Vec<&mut Member> = members
            .values_mut()
            .filter(|member| {
                let id = &member.info.id;
                !linked.contains(id) && !dialled.contains_key(id) && member.dial_at <= now
            })
            .collect();
        due.sort_by_key(|member| member.dial_at);
        let mut rumours = RUMOURS_DIALLED_MAX.saturating_sub(busy);
        due.retain(|member| {
            let wanted = member.met || rumours > 0;
            rumours -= usize::from(wanted && !member.met);
            wanted
        });
        due.into_iter()
            .map(|member| {
                member.dial_at = now + member.dial_pause;
                member.dial_pause = (member.dial_pause * 2).min(self.times.dial_pause_max);
                dialled.insert(member.info.id, !member.met);
                member.info.clone()
            })
            .collect()
    }

    /// An attempt to reach a member is over, whatever came of it.
    pub(crate) fn was_dialled(&mut self, id: NodeId) {
        self.dialled.remove(&id);
    }

    /// All members, by name.
    pub(crate) fn members(&self) -> impl Iterator<Item = MemberView<'_>> + '_ {
        self.members.values().map(|member| MemberView {
            info: &member.info,
            alive: member.alive,
            rtt: member.rtt,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;

    const SECOND: Duration = Duration::from_secs(1);

    fn roster(me: u64) -> Roster {
        Roster::new(NodeId(me), Timing::DEFAULT.membership)
    }

    fn info(id: u64) -> NodeInfo {
        NodeInfo {
            id: NodeId(id),
            name: format!("n{id}"),
            address: "127.0.0.1:1".parse().unwrap(),
            version: "1".into(),
            device: "cpu".into(),
            workers: 1,
            since: 0,
        }
    }

    #[test]
    fn silence_is_noticed_within_three_seconds_and_beats_bring_back() {
        let mut roster = roster(5);
        assert_eq!(roster.beat(info(7), SECOND), Some(Change::Alive(info(7))));
        assert_eq!(roster.beat(info(7), 2 * SECOND), None);
        assert!(roster.tick(4 * SECOND).is_empty() && roster.members().all(|member| member.alive));
        assert_eq!(roster.tick(5 * SECOND), [Change::Away(NodeId(7))]);
        assert!(roster.tick(6 * SECOND).is_empty(), "said once");
        assert_eq!(roster.beat(info(7), 7 * SECOND), Some(Change::Alive(info(7))));
    }

    #[test]
    fn a_broken_session_is_noticed_soon_and_may_be_replaced() {
        let mut roster = roster(5);
        roster.linked(NodeId(7));
        roster.beat(info(7), 10 * SECOND);
        assert!(
            roster.take_due(SECOND * 100).is_empty(),
            "there is a session, though it was there first"
        );
        roster.unlinked(NodeId(7), 10 * SECOND);
        assert!(roster.tick(10 * SECOND + SECOND / 2).is_empty());
        assert_eq!(roster.take_due(11 * SECOND), [info(7)]);
        assert_eq!(roster.tick(12 * SECOND), [Change::Away(NodeId(7))]);
        roster.beat(info(7), 13 * SECOND);
        roster.unlinked(NodeId(7), 13 * SECOND);
        roster.beat(info(7), 13 * SECOND + SECOND / 2);
        assert!(roster.tick(15 * SECOND).is_empty());
    }

    #[test]
    fn who_is_heard_of_is_dialled_with_growing_pauses() {
        let mut roster = roster(5);
        roster.heard_of(info(7), SECOND);
        roster.heard_of(info(3), SECOND);
        roster.heard_of(info(5), SECOND);
        assert_eq!(roster.take_due(SECOND), [info(7)], "the lower name dials first");
        assert!(roster.take_due(SECOND * 19 / 10).is_empty(), "it is under way");
        roster.was_dialled(NodeId(7));
        assert_eq!(roster.take_due(2 * SECOND), [info(7), info(3)]);
        let mut dialled = 0;
        for tenth in 0..600 {
            for id in [3, 7] {
                roster.was_dialled(NodeId(id));
            }
            dialled += roster.take_due(2 * SECOND + SECOND * tenth / 10).len();
        }
        assert!((10..40).contains(&dialled), "{dialled} attempts in a minute");
    }

    #[test]
    fn who_left_does_not_come_back_by_rumour() {
        let mut roster = roster(5);
        roster.beat(info(7), SECOND);
        assert_eq!(roster.leaves(NodeId(7)), Some(Change::Left(NodeId(7))));
        roster.heard_of(info(7), SECOND);
        assert_eq!(roster.beat(info(7), SECOND), None);
        assert_eq!(roster.members().count(), 0);
    }

    #[test]
    fn the_long_lost_are_forgotten() {
        let mut roster = roster(5);
        roster.beat(info(7), SECOND);
        assert_eq!(roster.tick(10 * SECOND), [Change::Away(NodeId(7))]);
        assert_eq!(roster.tick(700 * SECOND), [Change::Left(NodeId(7))]);
        assert_eq!(roster.members().count(), 0);
    }

    #[test]
    fn who_takes_part_in_a_run_is_waited_for_while_it_goes_on() {
        let mut roster = roster(5);
        roster.beat(info(7), SECOND);
        roster.take_part(BTreeSet::from([NodeId(5), NodeId(7)]));
        assert_eq!(roster.tick(10 * SECOND), [Change::Away(NodeId(7))]);
        assert!(roster.tick(80_000 * SECOND).is_empty());
        assert_eq!(roster.take_due(80_000 * SECOND), [info(7)], "it is still dialled");
        roster.take_part(BTreeSet::new());
        assert_eq!(roster.tick(80_001 * SECOND), [Change::Left(NodeId(7))]);
    }

    #[test]
    fn what_was_invented_is_bounded_dialled_a_little_and_soon_forgotten() {
        let invented = MEMBERS_MAX as u64 + 500;
        let mut roster = roster(1);
        for id in 10..10 + invented {
            roster.heard_of(info(id), SECOND);
        }
        assert_eq!(roster.members().count(), MEMBERS_MAX);
        assert_eq!(roster.take_due(2 * SECOND).len(), RUMOURS_DIALLED_MAX);
        assert!(roster.take_due(3 * SECOND).is_empty(), "none of them has answered");
        // One that is there is dialled whatever else is, and has a place whatever else had it.
        let real = 10 + invented;
        assert_eq!(roster.beat(info(real), 3 * SECOND), Some(Change::Alive(info(real))));
        assert_eq!(roster.members().count(), MEMBERS_MAX);
        roster.unlinked(NodeId(real), 3 * SECOND);
        assert_eq!(roster.take_due(4 * SECOND), [info(real)]);
        roster.beat(info(real), 62 * SECOND);
        assert!(roster.tick(62 * SECOND).is_empty(), "nobody misses what never was");
        assert_eq!(
            roster.members().map(|one| one.info.id).collect::<Vec<_>>(),
            [NodeId(real)]
        );
    }

    #[test]
    fn whoever_has_waited_longest_is_dialled_first() {
        let mut roster = roster(1);
        for id in 10..30 {
            roster.heard_of(info(id), SECOND);
        }
        let mut seen = BTreeSet::new();
        for tick in 0..3 {
            for due in roster.take_due(2 * SECOND + tick * SECOND / 100) {
                roster.was_dialled(due.id);
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
        assert_eq!(roster.take_due(SECOND), [info(7)]);
        roster.beat(info(7), SECOND);
        roster.heard_of(elsewhere, SECOND);
        assert!(
            roster.members().all(|member| member.info == &info(7)),
            "it knows itself best"
        );
    }
}
