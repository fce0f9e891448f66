//! The participants of a run: their newest states as far as they have come here, and which of them the end of the run
//! waits for.
//!
//! A participant is *live* while new states of its own keep coming, directly or over other nodes. So a node that is
//! alive to a live node counts as live here, too. A rumour cannot keep itself alive, because only the participant
//! itself makes new states.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::ids::NodeId;
use protocol::rng::splitmix64;
use protocol::wire::run_beat::{Ballot, GivenUp, ParticipantState};
use protocol::wire::run_plan::{Participant, RunPlan};

use crate::planted::{Bug, planted};
use crate::timing::RunLimits;

/// If the number of a relayed state exceeds that of a state from the participant itself by more than this, the relayed
/// one counts as forged: no participant makes this many new states while one of them travels.
const FAR_AHEAD: u64 = 1000;

/// Newest state of one participant, and the time at which it came.
#[derive(Clone, Debug)]
struct LatestState {
    state: ParticipantState,
    at: Duration,
    /// Time at which a state last came from the participant itself. While that is recent, states relayed by other nodes
    /// are ignored.
    directly: Option<Duration>,
}

impl LatestState {
    fn nothing(now: Duration) -> Self {
        Self {
            state: ParticipantState::default(),
            at: now,
            directly: None,
        }
    }
}

/// Evidence that the process of a participant has ended.
#[derive(Clone, Copy, Debug)]
struct Death {
    found: Duration,
    /// True if a new state of the participant has come over other nodes since this evidence was found: the participant
    /// may live where this node cannot reach it.
    is_doubtful: bool,
}

/// All participants of a run, as this node knows them.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    me: NodeId,
    /// This node's own state in the run, which its beats carry.
    pub(super) own: ParticipantState,
    participants: BTreeSet<NodeId>,
    heard: BTreeMap<NodeId, LatestState>,
    /// Participants that have left the cluster, or that a later process of the same name has replaced.
    gone: BTreeSet<NodeId>,
    /// Participants whose processes have ended, by this node's own evidence; a state message (beat) of such a
    /// participant would revoke it.
    dead: BTreeMap<NodeId, Death>,
    /// Participants to which this node's exchange has a link.
    linked: BTreeSet<NodeId>,
    /// Nodes that took part in this run and whose later beats are about other runs only, with the number of their state
    /// in the newest such beat.
    elsewhere: BTreeMap<NodeId, u64>,
    /// Participants together with which this node will not end the run any more, and why.
    rifts: BTreeMap<NodeId, GivenUp>,
    /// Participants that hold another stage of the model: they agree on their end by themselves.
    others: BTreeSet<NodeId>,
}

impl Members {
    pub(super) fn new(me: NodeId) -> Self {
        Self {
            me,
            own: ParticipantState::default(),
            participants: BTreeSet::from([me]),
            heard: BTreeMap::new(),
            gone: BTreeSet::new(),
            dead: BTreeMap::new(),
            linked: BTreeSet::new(),
            elsewhere: BTreeMap::new(),
            rifts: BTreeMap::new(),
            others: BTreeSet::new(),
        }
    }

    pub(super) fn me(&self) -> NodeId {
        self.me
    }

    /// Adds participants. An unknown participant gets the usual time to be heard before it counts as silent.
    pub(super) fn admit(&mut self, participants: impl Iterator<Item = NodeId>, now: Duration) {
        for node in participants {
            if self.participants.insert(node) {
                self.heard.entry(node).or_insert_with(|| LatestState::nothing(now));
            }
        }
    }

    /// Records that these participants hold another stage of the model than this node, so that they agree on their end
    /// by themselves.
    pub(super) fn hold_others(&mut self, others: impl Iterator<Item = NodeId>) {
        self.others.extend(others);
    }

    /// Starts to wait for the first state of a node: from now on the node is silent if none comes in time.
    pub(super) fn expect(&mut self, node: NodeId, now: Duration) {
        self.heard.entry(node).or_insert_with(|| LatestState::nothing(now));
    }

    /// Takes a participant's state, from the participant itself or relayed by another node. Returns true if the state
    /// is new.
    pub(super) fn hear(
        &mut self,
        node: NodeId,
        state: ParticipantState,
        directly: bool,
        now: Duration,
        limits: &RunLimits,
    ) -> bool {
        if node == self.me {
            return false;
        }
        let heard = self.heard.entry(node).or_insert_with(|| LatestState::nothing(now));
        let fresh = heard
            .directly
            .is_some_and(|at| now.saturating_sub(at) < limits.direct_is_fresh);
        // The participant's own state wins over a relayed one that is too far ahead of it to be genuine.
        let made_up = directly && state.number + FAR_AHEAD < heard.state.number;
        let news = state.number > heard.state.number && (directly || !fresh) || made_up;
        if directly {
            heard.directly = Some(now);
        }
        if news {
            // A node that was called off before the run began may come back as a guest.
            self.elsewhere
                .retain(|&other, &mut number| other != node || state.ended || state.number <= number);
            heard.at = now;
            heard.state = state;
            if let Some(death) = self.dead.get_mut(&node) {
                death.is_doubtful = true;
            }
        }
        news
    }

    /// Records that a node has left the cluster. Returns true if that is new.
    pub(super) fn leaves(&mut self, node: NodeId) -> bool {
        self.gone.insert(node)
    }

    /// Records this node's evidence that the process of a node has ended. From now on relayed states count again, so
    /// that a node that lives where only others reach it is heard over them.
    pub(super) fn dies(&mut self, node: NodeId, found: Duration) {
        let is_doubtful = false;
        self.dead.insert(node, Death { found, is_doubtful });
        if let Some(heard) = self.heard.get_mut(&node) {
            heard.directly = heard.directly.map(|_| Duration::ZERO);
        }
    }

    /// Revokes the evidence that a node's process has ended, because the node has been heard again.
    pub(super) fn lives(&mut self, node: NodeId) {
        self.dead.remove(&node);
    }

    /// Records that a link to a node came up or went down.
    pub(super) fn linked(&mut self, node: NodeId, up: bool) {
        if up {
            self.linked.insert(node);
        } else {
            self.linked.remove(&node);
        }
    }

    /// Returns true if a participant's process has ended: this node has evidence of it, no link to the participant is
    /// up, and no new state of it comes over other nodes.
    fn is_dead(&self, node: NodeId, now: Duration, limits: &RunLimits) -> bool {
        let Some(death) = self.dead.get(&node).filter(|_| !self.linked.contains(&node)) else {
            return false;
        };
        let patience = if death.is_doubtful {
            limits.doubtful_after
        } else {
            limits.dead_after
        };
        let waited = now.saturating_sub(death.found) > patience;
        planted(Bug::RefusedIsDead) || waited && self.is_quiet_for(node, now, patience)
    }

    /// Returns true if a participant's process has ended, or no new state of the participant came for longer than
    /// `limit`.
    pub(super) fn is_lost_for(&self, node: NodeId, now: Duration, limit: Duration, limits: &RunLimits) -> bool {
        self.is_dead(node, now, limits) || self.is_quiet_for(node, now, limit)
    }

    /// Returns true if a participant is silent here, directly and over others, and at least half of the others have
    /// given it up. They may have evidence that this node cannot have, because it has never reached the participant.
    fn is_given_up_by_others(&self, node: NodeId, now: Duration, limits: &RunLimits) -> bool {
        if self.linked.contains(&node) || !self.is_quiet_for(node, now, limits.dead_after) {
            return false;
        }
        let others: Vec<&ParticipantState> = self.others_heard(node, now, limits).collect();
        let agree = others.iter().filter(|state| state.gives_up(node)).count();
        agree > 0 && 2 * agree >= others.len()
    }

    /// Returns the states of all participants that are heard now, except this node and `but`.
    fn others_heard(&self, but: NodeId, now: Duration, limits: &RunLimits) -> impl Iterator<Item = &ParticipantState> {
        let others = self.participants.iter().copied();
        let others = others.filter(move |&node| node != but && node != self.me);
        others
            .filter(move |&node| !self.is_lost_for(node, now, limits.silent_after, limits) && !self.withdrew(node))
            .filter_map(|node| self.state(node))
    }

    /// Returns true if a participant that is given up as silent can be left out for good: it was silent for long, or
    /// all others that are heard have given it up, too.
    pub(super) fn is_lost_for_all(&self, node: NodeId, now: Duration, limits: &RunLimits) -> bool {
        let is_silent = self.given_up_one(node, now, limits) == Some(GivenUp::Silent);
        let long = self.is_quiet_for(node, now, limits.give_up_after);
        is_silent && (long || self.others_heard(node, now, limits).all(|state| state.gives_up(node)))
    }

    /// Marks participants as gone for good if a later process of the same name takes part and all others have given
    /// them up, since a name that a process merely claims proves nothing. Returns true if any are new.
    pub(super) fn leave_the_succeeded(&mut self, plan: &RunPlan, now: Duration, limits: &RunLimits) -> bool {
        let is_over = |one: &&Participant| {
            one.node != self.me
                && !self.gone.contains(&one.node)
                && plan.is_succeeded(one.node)
                && self.is_lost_for_all(one.node, now, limits)
        };
        let former: Vec<NodeId> = plan.participants.iter().filter(is_over).map(|one| one.node).collect();
        let before = self.gone.len();
        self.gone.extend(former);
        self.gone.len() > before
    }

    /// Records that a participant of this run is in another one, as its state with this number shows. Returns true if
    /// that is new.
    pub(super) fn turns_elsewhere(&mut self, node: NodeId, number: u64) -> bool {
        self.elsewhere.insert(node, number).is_none()
    }

    /// Breaks with a participant for good: this node will not end the run together with it. Returns true if that is
    /// new.
    pub(super) fn break_with(&mut self, node: NodeId, why: GivenUp) -> bool {
        let news = node != self.me && self.participants.contains(&node);
        news && self.rifts.insert(node, why).is_none()
    }

    /// Does not count the time in which this node itself stood still as silence of the participants: it could not hear
    /// them then.
    pub(super) fn stood_still(&mut self, gap: Duration) {
        self.heard.values_mut().for_each(|heard| heard.at += gap);
    }

    /// Returns the newest known state of a participant.
    pub(super) fn state(&self, node: NodeId) -> Option<&ParticipantState> {
        if node == self.me {
            return Some(&self.own);
        }
        self.heard.get(&node).map(|heard| &heard.state)
    }

    /// Returns true if a state of this run has ever come from the participant itself, not over others.
    pub(super) fn has_spoken(&self, node: NodeId) -> bool {
        self.heard.get(&node).is_some_and(|heard| heard.directly.is_some())
    }

    /// Returns the newest known states of all participants, this node's own first, as a beat (periodic state message)
    /// carries them.
    pub(super) fn states(&self) -> Vec<(NodeId, ParticipantState)> {
        let others = self.heard.iter().filter(|(_, heard)| heard.state.number > 0);
        let others = others.map(|(&node, heard)| (node, heard.state.clone()));
        std::iter::once((self.me, self.own.clone())).chain(others).collect()
    }

    pub(super) fn is_quiet_for(&self, node: NodeId, now: Duration, limit: Duration) -> bool {
        let heard = self.heard.get(&node);
        node != self.me && heard.is_none_or(|heard| now.saturating_sub(heard.at) > limit)
    }

    /// Returns the time since a participant's newest state came, if it is long enough to call the participant silent.
    pub(super) fn silence(&self, node: NodeId, now: Duration, limits: &RunLimits) -> Option<Duration> {
        let heard = self.heard.get(&node).filter(|_| node != self.me)?;
        let silence = now.saturating_sub(heard.at);
        (silence > limits.silent_after).then_some(silence)
    }

    /// Returns true if a participant has left the cluster or the run, or is in another run.
    pub(super) fn withdrew(&self, node: NodeId) -> bool {
        let left = self.gone.contains(&node) || self.elsewhere.contains_key(&node);
        left || self.state(node).is_some_and(|state| state.withdrawn)
    }

    /// Returns true if a participant has decided, with no way back, to end the run with the batches that this node will
    /// end it with.
    fn is_decided_alike(&self, state: &ParticipantState) -> bool {
        let fingerprint = |state: &ParticipantState| state.ballot.map(|ballot| ballot.fingerprint);
        state.decided && self.own.frozen && fingerprint(state) == fingerprint(&self.own)
    }

    /// Returns true if a participant has ended the run, or has decided to, otherwise than this node is going to.
    fn ended_apart(&self, node: NodeId) -> bool {
        let other = |state: &ParticipantState| self.others.contains(&node) && (state.settled.is_some() || !state.ended);
        let together = |state: &ParticipantState| self.is_decided_alike(state) || other(state);
        let over = |state: &ParticipantState| (state.ended || state.decided) && !together(state);
        node != self.me && self.state(node).is_some_and(over)
    }

    /// Returns the participants that will not return to this run, whatever happens.
    pub(super) fn gone(&self) -> BTreeSet<NodeId> {
        let gone = |node: &NodeId| self.withdrew(*node) || self.ended_apart(*node) || self.rifts.contains_key(node);
        self.participants.iter().copied().filter(gone).collect()
    }

    /// Returns the participants that are silent or have left the run: other workers may take their samples.
    pub(super) fn silent(&self, now: Duration, limits: &RunLimits) -> BTreeSet<NodeId> {
        let silent = |node: &NodeId| self.is_lost_for(*node, now, limits.silent_after, limits) || self.withdrew(*node);
        self.participants.iter().copied().filter(silent).collect()
    }

    /// Returns true if the run ended without this node: all others have ended it, are gone or are silent, and at least
    /// one with the same weights has ended it apart from this node. Silent ones do not come back to the run, because
    /// its end has not waited for them.
    pub(super) fn is_left_behind(&self, now: Duration, limits: &RunLimits) -> bool {
        let mut others = self.participants.iter().copied().filter(|&node| node != self.me);
        let has_ended = |node| self.others.contains(&node) && self.state(node).is_some_and(|state| state.ended);
        let over = |node| self.ended_apart(node) || self.withdrew(node) || has_ended(node);
        let ended = others
            .clone()
            .any(|node| self.ended_apart(node) && !self.withdrew(node));
        ended && others.all(|node| over(node) || self.is_lost_for(node, now, limits.silent_after, limits))
    }

    /// Returns the reason for which this node does not wait for a participant; `None` if it waits.
    fn given_up_one(&self, node: NodeId, now: Duration, limits: &RunLimits) -> Option<GivenUp> {
        if self.withdrew(node) || self.ended_apart(node) {
            return Some(GivenUp::Gone);
        }
        let lost = self.is_lost_for(node, now, limits.give_up_after, limits);
        let silent = (lost || self.is_given_up_by_others(node, now, limits)).then_some(GivenUp::Silent);
        silent.or_else(|| self.rifts.get(&node).copied())
    }

    /// Returns the participants for which this node does not wait, and why.
    pub(super) fn given_up(&self, now: Duration, limits: &RunLimits) -> Vec<(NodeId, GivenUp)> {
        let others = self.participants.iter().copied().filter(|&node| node != self.me);
        others
            .filter_map(|node| Some((node, self.given_up_one(node, now, limits)?)))
            .collect()
    }

    /// Returns the members with which this node would end the run: every living participant, minus those that a living
    /// participant refuses to end with. A node that would itself be left out ends alone.
    pub(super) fn waited_for(&self, now: Duration, limits: &RunLimits) -> BTreeSet<NodeId> {
        let lives = |node: &NodeId| {
            let given_up = self.given_up_one(*node, now, limits);
            given_up.is_none_or(GivenUp::is_a_rift)
        };
        let living: BTreeSet<NodeId> = self.participants.iter().copied().filter(lives).collect();
        let mut rifts = Vec::new();
        for &from in &living {
            let theirs = self.state(from).map_or(&[][..], |state| &state.given_up);
            let own = self.rifts.iter().map(|(&node, &why)| (node, why));
            let said: Vec<(NodeId, GivenUp)> = if from == self.me {
                own.collect()
            } else if planted(Bug::PrivateGiveUp) {
                Vec::new()
            } else {
                theirs.to_vec()
            };
            rifts.extend(
                said.into_iter()
                    .filter(|(_, why)| why.is_a_rift())
                    .map(|(to, _)| (from, to)),
            );
        }
        let united = without_rifts(living, rifts);
        if united.contains(&self.me) {
            united
        } else {
            BTreeSet::from([self.me])
        }
    }

    /// Returns true if all these members have the same batches as this node and will make no more, as they report.
    pub(super) fn stand_together(&self, members: &BTreeSet<NodeId>) -> bool {
        let here = |state: &ParticipantState| state.closed && state.fingerprint == self.own.fingerprint;
        members.iter().all(|&node| self.state(node).is_some_and(here))
    }

    /// Casts this node's ballot (its statement that it would end the run with its present batches and these members) if
    /// `is_time` is true. An earlier ballot is taken back for good if it differs or if `is_time` is false.
    pub(super) fn vote(&mut self, members: &BTreeSet<NodeId>, is_time: bool) {
        let attempts = members
            .iter()
            .filter_map(|&node| self.state(node))
            .map(|state| state.attempt);
        let attempt = attempts.max().unwrap_or(0).max(self.own.attempt);
        let next = |attempt| is_time.then(|| ballot(self.own.fingerprint, members, attempt));
        let same = |before: Ballot| next(before.attempt) == Some(before);
        let taken_back = self.own.ballot.is_some_and(|before| !same(before));
        let attempt = attempt + u64::from(taken_back);
        self.own.ballot = next(attempt);
        self.own.attempt = attempt;
    }

    /// Takes back this node's ballot (its statement with which batches and members it would end the run), because
    /// another member has taken back its own.
    pub(super) fn take_back(&mut self) {
        self.own.frozen = false;
        self.own.attempt += u64::from(self.own.ballot.take().is_some());
    }

    /// Returns true if all these members have cast the same ballot for the end of the run as this node.
    pub(super) fn vote_alike(&self, members: &BTreeSet<NodeId>) -> bool {
        let same = |state: &ParticipantState| state.ballot.is_some() && state.ballot == self.own.ballot;
        members.iter().all(|&node| self.state(node).is_some_and(same))
    }

    /// Returns true if each of these members is frozen: it has itself seen that all agree on the end, and takes no
    /// further batch.
    pub(super) fn are_frozen(&self, members: &BTreeSet<NodeId>) -> bool {
        let alike = |state: &ParticipantState| state.ballot.is_some() && state.ballot == self.own.ballot;
        let frozen = |state: &ParticipantState| state.frozen && alike(state) || self.is_decided_alike(state);
        members.iter().all(|&node| self.state(node).is_some_and(frozen))
    }

    /// Drops from an agreed end every member that has fallen silent for good, and breaks with it, which the others are
    /// told. A member that is only silent for now stays: it may speak again, and the others would end with it. The
    /// batches stay as agreed, because a member that is dropped may already have ended with them.
    pub(super) fn leave_out_the_lost(&mut self, members: &mut BTreeSet<NodeId>, now: Duration, limits: &RunLimits) {
        for (node, why) in self.given_up(now, limits) {
            if why == GivenUp::Silent && members.contains(&node) && self.is_lost_for_all(node, now, limits) {
                self.break_with(node, GivenUp::SilentAtTheEnd);
            }
        }
        let living = self.waited_for(now, limits);
        let is_silent = |node: NodeId| self.given_up_one(node, now, limits) == Some(GivenUp::Silent);
        let may_speak = |node: NodeId| is_silent(node) && !self.rifts.contains_key(&node);
        members.retain(|&node| living.contains(&node) || may_speak(node));
        if let Some(own) = &mut self.own.ballot {
            *own = ballot(own.fingerprint, members, own.attempt);
        }
    }

    /// Returns true if a member has taken back the ballot (statement on the end) on which this node takes no further
    /// batch. A member does that only before it is itself bound by the ballot, or because another has done it; so no
    /// member has ended the run on that ballot, and this node may go on, too.
    pub(super) fn has_moved_on(&self, members: &BTreeSet<NodeId>, fingerprint: u64) -> bool {
        let attempt = self.own.ballot.map_or(0, |ballot| ballot.attempt);
        let stays = |state: &ParticipantState| {
            let same = |ballot: Ballot| ballot.fingerprint == fingerprint && ballot.attempt <= attempt;
            state.ballot.is_some_and(same) && state.attempt <= attempt
        };
        let stays = |state: &ParticipantState| stays(state) || self.is_decided_alike(state);
        members.iter().any(|&node| !self.state(node).is_some_and(stays))
    }
}

/// Returns a ballot (a statement for the agreement on the end) for an end of the run with these batches and these
/// members.
fn ballot(fingerprint: u64, members: &BTreeSet<NodeId>, attempt: u64) -> Ballot {
    let members = members
        .iter()
        .fold(0u64, |sum, node| sum.wrapping_add(splitmix64(node.0)));
    Ballot {
        fingerprint,
        members,
        attempt,
    }
}

/// Removes members until no two are left that refuse to end with each other. All nodes with the same information get
/// the same result. The member at odds with most others goes first; of equals, the one that more members accuse, and
/// then the one with the higher id. So a single member that accuses all others is removed itself.
fn without_rifts(mut members: BTreeSet<NodeId>, mut rifts: Vec<(NodeId, NodeId)>) -> BTreeSet<NodeId> {
    rifts.sort_unstable();
    rifts.dedup();
    loop {
        rifts.retain(|(from, to)| members.contains(from) && members.contains(to) && from != to);
        let odds = |node: NodeId| {
            let accusers: BTreeSet<NodeId> = rifts.iter().filter(|rift| rift.1 == node).map(|rift| rift.0).collect();
            let accused = rifts.iter().filter(|rift| rift.0 == node).map(|rift| rift.1);
            let all: BTreeSet<NodeId> = accusers.iter().copied().chain(accused).collect();
            (all.len(), accusers.len(), node)
        };
        let ends = rifts.iter().flat_map(|&(from, to)| [from, to]);
        let Some((_, _, worst)) = ends.map(odds).max() else {
            return members;
        };
        members.remove(&worst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::ending::tests::settled;
    use crate::timing::Timing;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: RunLimits = Timing::DEFAULT.run;

    fn set(ids: &[u64]) -> BTreeSet<NodeId> {
        ids.iter().copied().map(NodeId).collect()
    }

    fn state(number: u64) -> ParticipantState {
        ParticipantState {
            number,
            ..ParticipantState::default()
        }
    }

    fn members() -> Members {
        let mut members = Members::new(NodeId(1));
        members.admit([1, 2, 3].map(NodeId).into_iter(), SECOND);
        members
    }

    #[test]
    fn who_is_heard_over_another_lives_and_an_old_word_is_no_sign_of_life() {
        let mut members = members();
        members.hear(NodeId(2), state(5), false, SECOND, &LIMITS);
        members.hear(NodeId(3), state(9), false, 20 * SECOND, &LIMITS);
        assert!(
            members.hear(NodeId(2), state(6), false, 20 * SECOND, &LIMITS),
            "a newer state that node 3 relays is a sign of life"
        );
        assert!(
            !members.hear(NodeId(2), state(6), false, 40 * SECOND, &LIMITS),
            "a repeated state is no sign of life"
        );
        assert_eq!(members.waited_for(45 * SECOND, &LIMITS), set(&[1, 2, 3]));
        assert_eq!(members.silent(45 * SECOND, &LIMITS), set(&[2, 3]));
        let silence = |node| members.silence(NodeId(node), 45 * SECOND, &LIMITS);
        assert_eq!([1, 2, 3].map(silence), [None, Some(25 * SECOND), Some(25 * SECOND)]);
        assert_eq!(members.silence(NodeId(2), 22 * SECOND, &LIMITS), None);
        members.hear(NodeId(3), state(10), false, 45 * SECOND, &LIMITS);
        assert_eq!(members.waited_for(60 * SECOND, &LIMITS), set(&[1, 3]));
        assert_eq!(members.given_up(60 * SECOND, &LIMITS), [(NodeId(2), GivenUp::Silent)]);
        members.hear(NodeId(2), state(7), false, 60 * SECOND, &LIMITS);
        assert_eq!(
            members.waited_for(60 * SECOND, &LIMITS),
            set(&[1, 2, 3]),
            "node 2 is back"
        );
    }

    #[test]
    fn who_stood_still_itself_blames_nobody() {
        let mut members = members();
        members.stood_still(100 * SECOND);
        assert_eq!(members.waited_for(105 * SECOND, &LIMITS), set(&[1, 2, 3]));
    }

    #[test]
    fn rifts_are_healed_by_leaving_out_the_same_one_everywhere() {
        let rifts = |rifts: &[(u64, u64)]| {
            let rifts = rifts.iter().map(|&(from, to)| (NodeId(from), NodeId(to))).collect();
            without_rifts(set(&[1, 2, 3, 4]), rifts)
        };
        assert_eq!(rifts(&[]), set(&[1, 2, 3, 4]));
        assert_eq!(rifts(&[(3, 2)]), set(&[1, 3, 4]), "the accused node is left out");
        assert_eq!(
            rifts(&[(3, 2), (2, 3)]),
            set(&[1, 2, 4]),
            "of two nodes that accuse each other, the higher id is left out"
        );
        assert_eq!(
            rifts(&[(3, 1), (3, 2), (3, 4)]),
            set(&[1, 2, 4]),
            "a node that accuses all others is left out itself"
        );
        assert_eq!(rifts(&[(1, 2), (3, 2), (2, 4)]), set(&[1, 3, 4]));
    }

    #[test]
    fn who_ended_apart_is_gone_and_who_ended_together_is_not() {
        let mut members = members();
        let together = ballot(7, &set(&[1, 2]), 0);
        members.own.ballot = Some(together);
        members.own.frozen = true;
        let ended = ParticipantState {
            ended: true,
            decided: true,
            frozen: true,
            ballot: Some(together),
            ..state(3)
        };
        members.hear(NodeId(2), ended.clone(), false, SECOND, &LIMITS);
        let apart = Some(ballot(8, &set(&[3]), 0));
        members.hear(
            NodeId(3),
            ParticipantState { ballot: apart, ..ended },
            false,
            SECOND,
            &LIMITS,
        );
        assert_eq!(members.waited_for(2 * SECOND, &LIMITS), set(&[1, 2]));
        assert_eq!(members.gone(), set(&[3]));
    }

    #[test]
    fn who_is_silent_for_now_stays_in_an_agreed_end() {
        let mut members = members();
        for node in [2, 3] {
            members.hear(NodeId(node), state(5), false, 20 * SECOND, &LIMITS);
        }
        members.dies(NodeId(3), 20 * SECOND);
        members.own.ballot = Some(ballot(7, &set(&[1, 2, 3]), 0));
        members.hear(NodeId(2), state(6), false, 22 * SECOND, &LIMITS);
        let mut agreed = set(&[1, 2, 3]);
        members.leave_out_the_lost(&mut agreed, 22 * SECOND, &LIMITS);
        assert_eq!(members.waited_for(22 * SECOND, &LIMITS), set(&[1, 2]));
        assert_eq!(agreed, set(&[1, 2, 3]), "node 2 hears node 3 and ends the run with it");
        assert_eq!(members.own.ballot, Some(ballot(7, &agreed, 0)));
    }

    #[test]
    fn a_run_that_all_others_have_ended_is_over() {
        let mut members = members();
        let ended = ParticipantState {
            ended: true,
            ..state(3)
        };
        assert!(
            !members.is_left_behind(9 * SECOND, &LIMITS),
            "the other nodes may be dead"
        );
        members.hear(NodeId(2), ended, false, 10 * SECOND, &LIMITS);
        members.hear(NodeId(3), state(1), false, 10 * SECOND, &LIMITS);
        assert!(
            !members.is_left_behind(11 * SECOND, &LIMITS),
            "node 3 continues the run"
        );
        members.leaves(NodeId(3));
        assert!(members.is_left_behind(11 * SECOND, &LIMITS));
    }

    /// A node that stood still until the others had ended would wait for batches of its stage that no node sends any
    /// more.
    #[test]
    fn a_run_that_all_stages_have_ended_is_over() {
        let mut members = members();
        members.hold_others(std::iter::once(NodeId(3)));
        let ended = ParticipantState {
            ended: true,
            ..state(3)
        };
        let ended_there = ParticipantState {
            settled: Some(settled(1.0)),
            ..ended.clone()
        };
        members.hear(NodeId(3), ended_there, false, 10 * SECOND, &LIMITS);
        members.hear(NodeId(2), state(1), false, 10 * SECOND, &LIMITS);
        assert!(
            !members.is_left_behind(11 * SECOND, &LIMITS),
            "node 2 holds the same stage and goes on"
        );
        members.hear(NodeId(2), ended, false, 10 * SECOND, &LIMITS);
        assert!(members.is_left_behind(11 * SECOND, &LIMITS));
    }
}
