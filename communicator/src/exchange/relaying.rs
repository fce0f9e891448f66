//! Handing batches on between nodes that have no link to each other.
//!
//! Every node tells its peers whom it has links to. When the node of some origin has none to a peer, the first of those
//! that have links to both hands them on as they come: waiting until the peer has visibly lacked them for a while, as
//! with the dead, would make them too stale to be of use.

use std::collections::BTreeSet;

use protocol::ids::NodeId;

use super::core::Exchange;
use super::event::Effect;
use super::peer::Peer;
use protocol::wire::link::{Message, Note};

impl Exchange {
    /// Tells peers whom this node has links to, when that has changed.
    pub(super) fn tell_links(&mut self, effects: &mut Vec<Effect>) {
        let linked = |(&node, peer): (&NodeId, &Peer)| peer.link.is_some().then_some(node);
        let linked: BTreeSet<NodeId> = self.peers.iter().filter_map(linked).collect();
        for (&to, peer) in &mut self.peers {
            if let Some(link) = &mut peer.link
                && link.told_links.as_ref() != Some(&linked)
            {
                link.told_links = Some(linked.clone());
                effects.push(Effect::Send {
                    to,
                    message: Message::Note(Note::Links(linked.iter().copied().collect())),
                });
            }
        }
        self.lay_relays();
    }

    /// A peer tells whom it has links to.
    pub(super) fn take_links(&mut self, from: NodeId, links: Vec<NodeId>, effects: &mut Vec<Effect>) {
        if let Some(link) = self.link_mut(from) {
            link.links = Some(links.into_iter().collect());
        }
        self.lay_relays();
        let targets: Vec<NodeId> = self
            .relays
            .iter()
            .filter(|(origin_node, _)| *origin_node == from)
            .map(|&(_, to)| to)
            .collect();
        for node in targets {
            self.pump(node, effects);
        }
    }

    /// Recomputes `relays`: for which origins' nodes, and to which peers, this node hands batches on.
    pub(super) fn lay_relays(&mut self) {
        let linked = |node: &NodeId| self.peers.get(node).is_some_and(|peer| peer.link.is_some());
        let nodes: Vec<NodeId> = self.peers.keys().copied().filter(linked).collect();
        let has = |node: NodeId, to: NodeId| {
            let link = self.peers.get(&node).and_then(|peer| peer.link.as_ref());
            let links = link.and_then(|link| link.links.as_ref());
            links.map(|links| links.contains(&to))
        };
        let mut relays = BTreeSet::new();
        for &origin_node in &nodes {
            for &to in nodes.iter().filter(|&&to| to != origin_node) {
                // Who has said nothing yet may have any link.
                let apart = has(origin_node, to) == Some(false) && has(to, origin_node) != Some(true);
                let reaches_both =
                    |&&node: &&NodeId| has(node, origin_node) == Some(true) && has(node, to) == Some(true);
                if apart && nodes.iter().find(reaches_both).is_none_or(|first| *first > self.me) {
                    relays.insert((origin_node, to));
                }
            }
        }
        self.relays = relays;
    }

    /// Hands on the batches that have just come from an origin's node.
    pub(super) fn relay(&mut self, origin_node: NodeId, effects: &mut Vec<Effect>) {
        let goes_on =
            |&to: &NodeId| self.routing.sends(self.me, origin_node, to) || self.relays.contains(&(origin_node, to));
        let targets: Vec<NodeId> = self.peers.keys().copied().filter(goes_on).collect();
        for node in targets {
            self.pump(node, effects);
        }
    }
}
