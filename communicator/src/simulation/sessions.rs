//! Simulated sessions of the control plane, and the outcomes of dialling a node: from these, nodes conclude which
//! processes have ended.

use protocol::ids::NodeId;

use super::world::{Due, World, pair};
use crate::node::roster::DialOutcome;
use crate::run::MemberChange;

/// Milliseconds from dialling a simulated node until the dial is refused.
const REFUSAL: u64 = 10;
/// Milliseconds from dialling a simulated node until it answers.
const ANSWER: u64 = 20;
/// Milliseconds from dialling a simulated node that does not answer until the dial times out.
const TIMEOUT: u64 = 5000;

impl World {
    /// Records that a node has a session with a peer whose beat (state message) has come, if the peer can be reached:
    /// the last beats of a cut session may come after its end, and do not open it again.
    pub(super) fn note_session(&mut self, at: NodeId, peer: NodeId) {
        if self.reaches(at, peer) && self.sessions.insert((at, peer)) {
            let now = self.time();
            self.nodes.get_mut(&at).unwrap().roster.linked(peer, now);
        }
    }

    /// Tells a node that the other side has ended their session.
    pub(super) fn session_ends(&mut self, at: NodeId, peer: NodeId) {
        if self.sessions.remove(&(at, peer)) {
            let now = self.time();
            self.nodes.get_mut(&at).unwrap().roster.unlinked(peer, true, now);
        }
    }

    /// Closes a node's session with a peer that is silent or gone.
    pub(super) fn close_session(&mut self, at: NodeId, peer: NodeId) {
        if self.sessions.remove(&(at, peer)) {
            let now = self.time();
            self.nodes.get_mut(&at).unwrap().roster.unlinked(peer, false, now);
            if self.reaches(at, peer) {
                self.after(REFUSAL, Due::SessionEnded { at: peer, peer: at });
            }
        }
    }

    /// Resets the sessions between two nodes, as a firewall or the end of a process does.
    pub(super) fn reset_sessions(&mut self, a: NodeId, b: NodeId) {
        for (at, peer) in [(a, b), (b, a)] {
            self.after(REFUSAL, Due::SessionEnded { at, peer });
        }
    }

    /// Dials the nodes of the cluster to which a simulated node wants a session.
    pub(super) fn dial_due(&mut self, at: NodeId) {
        let now = self.time();
        for due in self.nodes.get_mut(&at).unwrap().roster.take_due(now) {
            let node = due.info.id;
            let (outcome, delay) = self.dial(at, node);
            self.after(delay, Due::Dialled { at, node, outcome });
        }
    }

    /// Returns the outcome of dialling another node, and its delay in milliseconds.
    fn dial(&self, at: NodeId, node: NodeId) -> (DialOutcome, u64) {
        let target = &self.nodes[&node];
        let way = pair(at, node);
        if self.rejecting.contains(&way) || target.alive && self.undialable.contains(&node) {
            return (DialOutcome::Refused, REFUSAL);
        }
        if self.blocked.contains(&way) || target.alive && target.stopped {
            return (DialOutcome::Failed, TIMEOUT);
        }
        if target.alive {
            return (DialOutcome::Reached, ANSWER);
        }
        let is_there = |id: &NodeId| self.nodes[id].info.address == target.info.address && self.reaches(at, *id);
        if self.alive().iter().any(is_there) {
            (DialOutcome::AnotherKey, ANSWER)
        } else {
            (DialOutcome::Refused, REFUSAL)
        }
    }

    /// Handles the outcome of dialling another node. Panics if a live node is then taken for dead, although dialling
    /// has never reached it.
    pub(super) fn dialled(&mut self, at: NodeId, node: NodeId, outcome: DialOutcome) {
        if outcome == DialOutcome::Reached {
            self.reached.insert((at, node));
        }
        let now = self.time();
        let change = self.nodes.get_mut(&at).unwrap().roster.was_dialled(node, outcome, now);
        if let Some(MemberChange::Dead(dead)) = change {
            assert!(
                !self.nodes[&dead].alive || self.reached.contains(&(at, dead)),
                "{at} takes {dead} for dead, which lives behind a firewall"
            );
            self.say(&format!("{at} finds that the process of {dead} has ended"));
        }
        if let Some(change) = change {
            self.changed(at, change);
        }
    }
}
