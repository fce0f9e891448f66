//! Sessions of the control plane, and what dialling a node comes to: they decide whose processes are known to have ended.

use protocol::ids::NodeId;

use super::world::{Due, World, pair};
use crate::node::roster::DialOutcome;
use crate::run::MemberChange;

/// Milliseconds that a refusal, an answer and a timeout take.
const REFUSAL: u64 = 10;
const ANSWER: u64 = 20;
const TIMEOUT: u64 = 5000;

impl World {
    /// A node has a session with a peer whose beats come. The last ones may come after its end.
    pub(super) fn note_session(&mut self, at: NodeId, peer: NodeId) {
        if self.reaches(at, peer) && self.sessions.insert((at, peer)) {
            let now = self.time();
            self.nodes.get_mut(&at).unwrap().roster.linked(peer, now);
        }
    }

    /// The other machine ends a session, if the node hears of that.
    pub(super) fn session_ends(&mut self, at: NodeId, peer: NodeId) {
        if self.sessions.remove(&(at, peer)) {
            let now = self.time();
            self.nodes.get_mut(&at).unwrap().roster.unlinked(peer, true, now);
        }
    }

    /// A node closes its sessions with a peer that is silent, or gone.
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

    /// Dials those whom a node's roster wants to reach.
    pub(super) fn dial_due(&mut self, at: NodeId) {
        let now = self.time();
        for due in self.nodes.get_mut(&at).unwrap().roster.take_due(now) {
            let node = due.info.id;
            let (outcome, delay) = self.dial(at, node);
            self.after(delay, Due::Dialled { at, node, outcome });
        }
    }

    /// What a node hears when it dials another's address, and after how many milliseconds.
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

    /// A node has dialled another.
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
