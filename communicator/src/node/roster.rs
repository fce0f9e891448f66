//! Who is in the cluster, and whether they are alive: a pure core, told what happens and what time it is.
//!
//! A member is *alive* while its beats come. When they stop, or its session breaks and no other is made at once, it is
//! *silent*: it may come back, and is dialled until it is forgotten. It is *dead* if this node has evidence that its process
//! has ended; a beat of it would revoke that. One that says that it leaves is *gone* at once. So is a dead one, or one that was
//! silent for long, when another node of its name is there: that is what it was started again as.

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

/// Nodes that are dialled at a time and can wait: those that were only heard of, and those that there is a session with.
const RUMOURS_DIALLED_MAX: usize = 8;

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
    /// Those that are being dialled, and whether they could have waited.
    dialled: BTreeMap<NodeId, bool>,
    /// Those who take part in this node's run.
    participants: BTreeSet<NodeId>,
}

#[derive(Debug)]
struct Member {
    info: NodeInfo,
    alive: bool,
    /// How far the run is that it is in, as its own beats say.
    phase: Phase,
    /// Whether it was ever heard itself.
    met: bool,
    /// When it was last heard, or first heard of.
    heard: Duration,
    rtt: Option<Duration>,
    evidence: Evidence,
    dial_at: Duration,
    dial_pause: Duration,
}

/// A member to dial.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DueDial {
    pub(crate) info: NodeInfo,
    /// There is a session already: the dial only finds out whether the member can be dialled.
    pub(crate) is_probe: bool,
}

/// A member, for people.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemberView<'a> {
    pub(crate) info: &'a NodeInfo,
    /// Whether its beats come.
    pub(crate) alive: bool,
    /// How far its run was when the last one came.
    pub(crate) phase: Phase,
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

    /// How far the run is that a node is in.
    pub(crate) fn does(&mut self, id: NodeId, phase: Phase) {
        if let Some(member) = self.members.get_mut(&id) {
            member.phase = phase;
        }
    }

    /// Another living member that has the name of this node.
    pub(crate) fn namesake(&self, node: &NodeInfo) -> Option<&NodeInfo> {
        let mut others = self.members.values().filter(|member| member.info.id != node.id);
        let found = others.find(|member| member.alive && member.info.name == node.name);
        found.map(|member| &member.info)
    }

    /// Members that were started again: another node of their name is alive, and they are dead, or were silent for so long that
    /// nobody waits for them. A name that a node merely claims evicts nobody.
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

    /// Whether a node's own beats have come before.
    pub(crate) fn has_met(&self, id: NodeId) -> bool {
        self.members.get(&id).is_some_and(|member| member.met)
    }

    /// Whether a node is gone for good: it said so, or another one has taken its place.
    pub(crate) fn has_left(&self, id: NodeId) -> bool {
        self.left.contains(&id)
    }

    /// A beat of ours was answered after this time.
    pub(crate) fn answered(&mut self, id: NodeId, rtt: Duration) {
        if let Some(member) = self.members.get_mut(&id) {
            member.rtt = Some(rtt);
        }
    }

    /// A session with a node is ready. If the other side has dialled, this node has yet to find out whether it could: without
    /// that, it could not tell later whether the other's process has ended.
    pub(crate) fn linked(&mut self, id: NodeId, now: Duration) {
        self.linked.insert(id);
        if let Some(member) = self.members.get_mut(&id) {
            member.evidence.linked();
            member.dial_pause = self.times.dial_pause;
            member.dial_at = now + self.times.dial_patience;
        }
    }

    /// The last session with a node is gone, ended by the other side or by this one.
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

    /// A node said that it leaves.
    pub(crate) fn leaves(&mut self, id: NodeId) -> Option<MemberChange> {
        /// Names of those that left, kept until rumours of them have died down.
        const LEFT_MAX: usize = 256;
        if self.left.len() == LEFT_MAX {
            self.left.remove(0);
        }
        self.left.push(id);
        self.members.remove(&id).map(|_| MemberChange::Left(id))
    }

    /// Who takes part in the run that this node is in.
    pub(crate) fn take_part(&mut self, participants: BTreeSet<NodeId>) {
        self.participants = participants;
    }

    /// Time has passed.
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

    /// The members to dial now, for a session or, where there is one, to find out whether they can be dialled. Each is named
    /// once, and again after a pause that grows; of those that are only heard of or have a session, a few at a time, whoever
    /// has waited longest first.
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

    /// An attempt to reach a member is over.
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

    /// All members, by name.
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
