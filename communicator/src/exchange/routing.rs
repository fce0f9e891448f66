//! Which way single batches go, and whom a node keeps pace with: the exchange's part of a strategy.
//!
//! A routing says who sends what to whom as soon as it has it, and nothing else. Every replica gets every batch under any
//! of them: who sees that a peer lacks something helps it after a while. So a way that is broken costs time, never a batch.

use std::collections::BTreeSet;

use protocol::ids::NodeId;
use protocol::job::{self, Rounds};
use protocol::wire::run_plan::RunPlan;

use super::bundling::ReductionPath;

/// The way of single batches through a run's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Every node sends what its own workers made to every other.
    Mesh,
    /// Every node sends what its own workers made to one, which hands it on to all.
    Star {
        /// The one in the middle.
        hub: NodeId,
        /// Those who may be, the first that is heard before the others.
        hubs: Vec<NodeId>,
    },
}

/// The way on which a strategy's rounds are added up, if they are.
#[must_use]
pub(super) fn reduction_path_of(exchange: job::Exchange) -> Option<ReductionPath> {
    match exchange {
        job::Exchange::Rounds(Rounds {
            topology,
            weighting: Some(_),
            ..
        }) => match topology {
            job::RoundTopology::Mesh => None,
            job::RoundTopology::Server => Some(ReductionPath::Star),
            job::RoundTopology::RingReduce => Some(ReductionPath::RingReduce),
            job::RoundTopology::Ring | job::RoundTopology::Stepwise => Some(ReductionPath::Ring),
        },
        job::Exchange::Strom(_) | job::Exchange::Rounds(_) | job::Exchange::Layers(_) => None,
    }
}

impl Routing {
    /// The routing of a run's strategy. Where nobody waits for rounds, a server hands on batch by batch.
    #[must_use]
    pub fn of(plan: &RunPlan) -> Self {
        match plan.job.exchange {
            job::Exchange::Rounds(Rounds {
                topology: job::RoundTopology::Server,
                weighting: None,
                ..
            }) => {
                let hubs = plan.participants.iter().map(|participant| participant.node);
                Self::star(hubs.collect())
            }
            job::Exchange::Strom(_) | job::Exchange::Rounds(_) | job::Exchange::Layers(_) => Self::Mesh,
        }
    }

    /// A star in whose middle the first of these is, as long as it is heard.
    #[must_use]
    pub fn star(hubs: Vec<NodeId>) -> Self {
        match hubs.first() {
            Some(&hub) => Self::Star { hub, hubs },
            None => Self::Mesh,
        }
    }

    /// These nodes are not heard.
    pub(super) fn lay(&mut self, silent: &BTreeSet<NodeId>) {
        if let Self::Star { hub, hubs } = self
            && let Some(first) = hubs.iter().find(|node| !silent.contains(node))
        {
            *hub = *first;
        }
    }

    /// Whether a node sends the batches of an origin's node to a peer as soon as it has them.
    pub(super) fn sends(&self, me: NodeId, origin_node: NodeId, to: NodeId) -> bool {
        debug_assert_ne!(me, to);
        match self {
            Self::Mesh => me == origin_node,
            Self::Star { hub, .. } => me == *hub || me == origin_node && to == *hub,
        }
    }

    /// Whether a node's workers keep pace with a peer: those that it feeds itself. Who gets their batches another way is
    /// the business of whoever feeds it.
    pub(super) fn keeps_pace(&self, me: NodeId, with: NodeId) -> bool {
        self.sends(me, me, with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Vec<NodeId> {
        (1..=5).map(NodeId).collect()
    }

    #[test]
    fn every_way_reaches_everybody() {
        let nodes = nodes();
        for routing in [Routing::Mesh, Routing::star(vec![NodeId(3)])] {
            for &origin_node in &nodes {
                let mut have = vec![origin_node];
                let mut at = 0;
                while let Some(&me) = have.get(at) {
                    at += 1;
                    for &to in nodes.iter().filter(|&&to| to != me) {
                        if routing.sends(me, origin_node, to) && !have.contains(&to) {
                            have.push(to);
                        }
                    }
                }
                have.sort();
                assert_eq!(have, nodes, "{routing:?}, batches of node {origin_node}");
            }
        }
    }

    #[test]
    fn in_a_star_only_the_hub_feeds_all() {
        let star = Routing::star(vec![NodeId(1)]);
        assert!(star.keeps_pace(NodeId(1), NodeId(2)) && star.keeps_pace(NodeId(2), NodeId(1)));
        assert!(!star.keeps_pace(NodeId(2), NodeId(3)));
        assert!(Routing::Mesh.keeps_pace(NodeId(2), NodeId(3)));
    }

    #[test]
    fn the_first_that_is_heard_is_in_the_middle() {
        let mut star = Routing::star(nodes());
        let hub = |star: &Routing| match star {
            Routing::Star { hub, .. } => hub.0,
            Routing::Mesh => 0,
        };
        assert_eq!(hub(&star), 1);
        star.lay(&BTreeSet::from([NodeId(1), NodeId(2)]));
        assert_eq!(hub(&star), 3);
        star.lay(&BTreeSet::from([NodeId(2)]));
        assert_eq!(hub(&star), 1);
        star.lay(&nodes().into_iter().collect());
        assert_eq!(hub(&star), 1, "if all nodes are silent, the first node stays the hub");
    }
}
