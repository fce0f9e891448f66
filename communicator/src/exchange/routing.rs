//! The path of single batches: which node sends which batches to which peer, and with which peers a node keeps pace.
//!
//! A routing only decides which batches are sent at once. Every replica gets every batch under any routing, because a
//! node that sees that a peer lacks batches sends them after a while. So a broken path costs time, never a batch.

use std::collections::BTreeSet;

use protocol::ids::NodeId;
use protocol::job::{self, Rounds};
use protocol::wire::run_plan::RunPlan;

use super::bundling::ReductionPath;

/// The path of single batches through the members of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Every node sends its own workers' batches to every other node.
    Mesh,
    /// Every node sends its own workers' batches to a hub, which forwards them to all others.
    Star {
        /// The node over which all batches go now.
        hub: NodeId,
        /// The candidates for the hub, in order: the hub is the first of them that is not silent.
        hubs: Vec<NodeId>,
    },
}

/// Returns the path along which a strategy adds up the batches of its rounds; `None` if each batch goes by itself.
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
    /// Returns the path of single batches in the run of this plan: over a hub, if the job's rounds run over a server
    /// and no worker waits for others; otherwise from every node to every other.
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

    /// Returns a star whose hub is the first of these nodes that is not silent; a mesh if the list is empty.
    #[must_use]
    pub fn star(hubs: Vec<NodeId>) -> Self {
        match hubs.first() {
            Some(&hub) => Self::Star { hub, hubs },
            None => Self::Mesh,
        }
    }

    /// Sets the silent nodes: a star takes the first candidate that is not silent as its hub, and keeps its hub if all
    /// are.
    pub(super) fn lay(&mut self, silent: &BTreeSet<NodeId>) {
        if let Self::Star { hub, hubs } = self
            && let Some(first) = hubs.iter().find(|node| !silent.contains(node))
        {
            *hub = *first;
        }
    }

    /// Returns true if node `me` sends the batches of `origin_node`'s workers to a peer as soon as it has them.
    pub(super) fn sends(&self, me: NodeId, origin_node: NodeId, to: NodeId) -> bool {
        debug_assert_ne!(me, to);
        match self {
            Self::Mesh => me == origin_node,
            Self::Star { hub, .. } => me == *hub || me == origin_node && to == *hub,
        }
    }

    /// Returns true if the workers of node `me` are throttled when the peer falls behind. That holds for the peers to
    /// which the node itself sends its batches; the others are the concern of the nodes that forward them.
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
