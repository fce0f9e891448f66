//! The members of the cluster, and which of them are alive: a pure core, told what happens and what time it is.
//!
//! A member is *alive* while its beats come. When they stop, or its session breaks and no other is made at once, the
//! member is *silent*: it may come back, and is dialled until it is forgotten. It is *dead* if this node has evidence
//! that its process has ended; a beat of it would revoke that. A member that says good-bye has *left* at once. So has a
//! member that is dead, or was silent for long, when another node of its name is alive: that is the member, started
//! again.

mod evidence;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::ids::NodeId;
use protocol::wire::bounds::MEMBERS_MAX;
use protocol::wire::control::{NodeInfo, Phase};

use crate::run::MemberChange;
use crate::timing::MembershipTimes;
pub(crate) use evidence::DialOutcome;
use evidence::Evidence;

/// Maximum number of non-urgent dials at the same time: to nodes that were only heard of, and to nodes with a session,
/// of which it is to be found out if they can be dialled.
const RUMOURS_DIALLED_MAX: usize = 8;

/// All members of the cluster but this node, with what is known of each. Times count from a moment that the caller
/// chose.
#[derive(Debug)]
pub(crate) struct Roster {
    me: NodeId,
    times: MembershipTimes,
    members: BTreeMap<NodeId, Member>,
    /// Nodes with which there is a session, be they members or not.
    linked: BTreeSet<NodeId>,
    /// Nodes that have left for good: they are not added again when other nodes still tell of them.
    left: Vec<NodeId>,
    /// Nodes that are being dialled, with true if the dial is not urgent: the node was only heard of, or has a session.
    dialled: BTreeMap<NodeId, bool>,
    /// Nodes that take part in this node's run.
    participants: BTreeSet<NodeId>,
}

#[derive(Debug)]
struct Member {
    info: NodeInfo,
    alive: bool,
    /// Phase of the run that the member is in, as its own state messages say.
    phase: Phase,
    /// True if a beat (a node's periodic state message) of the member itself has ever come.
    met: bool,
    /// Time at which the member was last heard, or first heard of.
    heard: Duration,
    rtt: Option<Duration>,
    evidence: Evidence,
    dial_at: Duration,
    dial_pause: Duration,
}

/// A member that is to be dialled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DueDial {
    pub(crate) info: NodeInfo,
    /// True if there is a session already: the dial only finds out if the member can be dialled.
    pub(crate) is_probe: bool,
}

/// A member as it is shown to people.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemberView<'a> {
    pub(crate) info: &'a NodeInfo,
    /// True if the member is alive: its beats (periodic state messages) come.
    pub(crate) alive: bool,
    /// Phase of the member's run when its last state message came.
    pub(crate) phase: Phase,
    /// Newest round-trip time of a message to the member.
    pub(crate) rtt: Option<Duration>,
}

impl Roster {
    /// Creates an empty roster for this node.
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

    /// Adds a node that another node has told of. The number of members is limited, and no member is dropped for a
    /// rumour.
    pub(crate) fn heard_of(&mut self, info: NodeInfo, now: Duration) {
        if info.id == self.me || self.left.contains(&info.id) {
            return;
        }
        if let Some(member) = self.members.get_mut(&info.id) {
            // Several rumours may give different addresses, and only one may be right: each is tried.
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
            phase: Phase::Ended,
            met: false,
            heard: now,
            rtt: None,
            evidence: Evidence::default(),
            dial_at: now + patience,
            dial_pause: self.times.dial_pause,
        };
        self.members.insert(member.info.id, member);
    }

    /// Makes room for a node whose own state message has come, in place of one that was only heard of.
    fn make_room(&mut self) {
        if self.members.len() >= MEMBERS_MAX {
            let rumour = self.members.iter().find(|(_, member)| !member.met);
            if let Some(id) = rumour.map(|(&id, _)| id) {
                self.members.remove(&id);
            }
        }
    }

    /// Records that a node's own beat has come. Returns the change if the node was not alive before.
    pub(crate) fn beat(&mut self, info: NodeInfo, now: Duration) -> Option<MemberChange> {
        let id = info.id;
        if !self.members.contains_key(&id) {
            self.make_room();
        }
        self.heard_of(info.clone(), now);
        let member = self.members.get_mut(&id)?;
        member.heard = now;
        member.met = true;
        member.evidence.heard();
        if member.info.address != info.address {
            member.evidence = Evidence::default();
        }
        member.info = info;
        if std::mem::replace(&mut member.alive, true) {
            None
        } else {
            Some(MemberChange::Alive(member.info.clone()))
        }
    }

    /// Records the phase of the run that a node is in.
    pub(crate) fn does(&mut self, id: NodeId, phase: Phase) {
        if let Some(member) = self.members.get_mut(&id) {
            member.phase = phase;
        }
    }

    /// Returns another living member that has the same name as `node`.
    pub(crate) fn namesake(&self, node: &NodeInfo) -> Option<&NodeInfo> {
        let mut others = self.members.values().filter(|member| member.info.id != node.id);
        let found = others.find(|member| member.alive && member.info.name == node.name);
        found.map(|member| &member.info)
    }

    /// Returns the members that were started again: another node of their name is alive, and they are dead or were
    /// silent for `succeeded_after`. A name that a node merely claims evicts no living member.
    fn succeeded(&self, now: Duration) -> Vec<NodeId> {
        let is_over = |member: &&Member| {
            let silence = now.saturating_sub(member.heard);
            member.met && !member.alive && (member.evidence.dead || silence > self.times.succeeded_after)
        };
        let succeeded = self.members.values().filter(is_over);
        succeeded
            .filter(|member| self.namesake(&member.info).is_some())
            .map(|member| member.info.id)
            .collect()
    }

    /// Returns true if state messages of the node itself have come before.
    pub(crate) fn has_met(&self, id: NodeId) -> bool {
        self.members.get(&id).is_some_and(|member| member.met)
    }

    /// Returns true if a node has left for good: it said so, or another node of its name has replaced it.
    pub(crate) fn has_left(&self, id: NodeId) -> bool {
        self.left.contains(&id)
    }

    /// Records the round-trip time of a state message that a node has answered.
    pub(crate) fn answered(&mut self, id: NodeId, rtt: Duration) {
        if let Some(member) = self.members.get_mut(&id) {
            member.rtt = Some(rtt);
        }
    }

    /// Records that a session with a node is ready. If the other side has dialled, this node still dials the other some
    /// time later: only if that succeeds can it tell later, by dialling, if the other's process has ended.
    pub(crate) fn linked(&mut self, id: NodeId, now: Duration) {
        self.linked.insert(id);
        if let Some(member) = self.members.get_mut(&id) {
            member.evidence.linked();
            member.dial_pause = self.times.dial_pause;
            member.dial_at = now + self.times.dial_patience;
        }
    }

    /// Records that the last session with a node is gone, ended by the other side or by this one.
    pub(crate) fn unlinked(&mut self, id: NodeId, by_peer: bool, now: Duration) {
        self.linked.remove(&id);
        let patience = if self.me < id {
            self.times.dial_pause
        } else {
            self.times.dial_patience
        };
        if let Some(member) = self.members.get_mut(&id) {
            let at_once = member.evidence.unlinked(by_peer);
            member.dial_at = if at_once { now } else { now + patience };
            member.heard = member
                .heard
                .min((now + self.times.broken_after).saturating_sub(self.times.away_after));
        }
    }

    /// Removes a node for good, because it says that it leaves or another node of its name has replaced it.
    pub(crate) fn leaves(&mut self, id: NodeId) -> Option<MemberChange> {
        /// Maximum number of nodes that have left and are remembered until other nodes no longer tell of them.
        const LEFT_MAX: usize = 256;
        if self.left.len() == LEFT_MAX {
            self.left.remove(0);
        }
        self.left.push(id);
        self.members.remove(&id).map(|_| MemberChange::Left(id))
    }

    pub(crate) fn take_part(&mut self, participants: BTreeSet<NodeId>) {
        self.participants = participants;
    }

    /// Finds the members that have fallen silent, are to be forgotten or were started again; called at every clock
    /// tick.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<MemberChange> {
        let mut changes = Vec::new();
        for (&id, member) in &mut self.members {
            if member.alive && now.saturating_sub(member.heard) > self.times.away_after {
                member.alive = false;
                changes.push(MemberChange::Silent(id));
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
                changes.push(MemberChange::Left(id));
            }
            kept
        });
        for id in self.succeeded(now) {
            changes.extend(self.leaves(id).map(|_| MemberChange::Succeeded(id)));
        }
        changes
    }

    /// Returns the members to dial now: for a session or, if there is one, to find out if they can be dialled. Each is
    /// returned once, and again after a pause that grows. Of members that were only heard of or have a session, a few
    /// are dialled at a time, those that have waited longest first.
    pub(crate) fn take_due(&mut self, now: Duration) -> Vec<DueDial> {
        let Self {
            members,
            linked,
            dialled,
            ..
        } = self;
        let busy = dialled.values().filter(|&&may_wait| may_wait).count();
        let mut due: Vec<&mut Member> = members
            .values_mut()
            .filter(|member| {
                let id = &member.info.id;
                let wanted = !linked.contains(id) || member.evidence.lacks_reach();
                wanted && !dialled.contains_key(id) && member.dial_at <= now
            })
            .collect();
        due.sort_by_key(|member| member.dial_at);
        let may_wait = |member: &Member| !member.met || linked.contains(&member.info.id);
        let mut room = RUMOURS_DIALLED_MAX.saturating_sub(busy);
        due.retain(|member| {
            let wanted = !may_wait(member) || room > 0;
            room -= usize::from(wanted && may_wait(member));
            wanted
        });
        due.into_iter()
            .map(|member| {
                member.dial_at = now + member.dial_pause;
                member.dial_pause = (member.dial_pause * 2).min(self.times.dial_pause_max);
                dialled.insert(member.info.id, may_wait(member));
                DueDial {
                    info: member.info.clone(),
                    is_probe: linked.contains(&member.info.id),
                }
            })
            .collect()
    }

    /// Records the outcome of dialling a member. Returns the change if the member's process is now known to have ended.
    pub(crate) fn was_dialled(&mut self, id: NodeId, outcome: DialOutcome, now: Duration) -> Option<MemberChange> {
        self.dialled.remove(&id);
        let is_linked = self.linked.contains(&id);
        let member = self.members.get_mut(&id)?;
        let was_dead = member.evidence.dead;
        if member.evidence.dialled(outcome, now, self.times.refused_apart) {
            member.dial_at = now + self.times.refused_apart;
        }
        let dies = member.evidence.dead && !was_dead && !is_linked;
        dies.then(|| {
            member.alive = false;
            MemberChange::Dead(id)
        })
    }

    /// Returns all members in the order of their ids.
    pub(crate) fn members(&self) -> impl Iterator<Item = MemberView<'_>> + '_ {
        self.members.values().map(|member| MemberView {
            info: &member.info,
            alive: member.alive,
            phase: member.phase,
            rtt: member.rtt,
        })
    }
}

#[cfg(test)]
mod tests;
