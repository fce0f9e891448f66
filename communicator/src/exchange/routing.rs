//! Which way batches go, and whom a node keeps pace with: the exchange's part of a strategy.
//!
//! A routing says who sends what to whom as soon as it has it, and nothing else. Every replica gets every batch under any
//! of them: who sees that a peer lacks something helps it after a while. So a way that is broken costs time, never a batch.

use protocol::ids::NodeId;
use protocol::job;

/// The way of batches through a run's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Every node sends what its own workers made to every other.
    Mesh,
    /// Every node sends what its own workers made to one, which hands it on to all. No job asks for it: tests show with it
    /// that the exchange depends on no routing.
    #[cfg(test)]
    Star {
        /// The one in the middle.
        hub: NodeId,
    },
}

impl Routing {
    /// The routing of a job's strategy.
    #[must_use]
    pub fn of(exchange: job::Exchange) -> Self {
        match exchange {
            job::Exchange::Strom(_) | job::Exchange::Rounds(_) => Self::Mesh,
        }
    }

    /// Whether a node sends a home's batches to a peer as soon as it has them.
    pub(super) fn sends(self, me: NodeId, home: NodeId, to: NodeId) -> bool {
        debug_assert_ne!(me, to);
        match self {
            Self::Mesh => me == home,
            #[cfg(test)]
            Self::Star { hub } => me == hub || me == home && to == hub,
        }
    }

    /// Whether a node's workers keep pace with a peer: those that it feeds itself. Who gets their batches another way is
    /// the business of whoever feeds it.
    pub(super) fn keeps_pace(self, me: NodeId, with: NodeId) -> bool {
        self.sends(me, me, with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_reaches_everybody() {
        let nodes: Vec<NodeId> = (1..=5).map(NodeId).collect();
        for routing in [Routing::Mesh, Routing::Star { hub: NodeId(3) }] {
            for &home in &nodes {
                let mut have = vec![home];
                let mut at = 0;
                while let Some(&me) = have.get(at) {
                    at += 1;
                    for &to in nodes.iter().filter(|&&to| to != me) {
                        if routing.sends(me, home, to) && !have.contains(&to) {
                            have.push(to);
                        }
                    }
                }
                have.sort();
                assert_eq!(have, nodes, "{routing:?} from {home}");
            }
        }
    }

    #[test]
    fn in_a_star_only_the_hub_feeds_all() {
        let star = Routing::Star { hub: NodeId(1) };
        assert!(star.keeps_pace(NodeId(1), NodeId(2)) && star.keeps_pace(NodeId(2), NodeId(1)));
        assert!(!star.keeps_pace(NodeId(2), NodeId(3)));
        assert!(Routing::Mesh.keeps_pace(NodeId(2), NodeId(3)));
    }
}
