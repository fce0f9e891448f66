//! The other members of the run, with their links, and the parts of the log that are kept for them.
//!
//! Every node tells its peers which nodes it has links to. If an origin's node has no link to a peer, the first of the
//! nodes that have links to both *relays*: it forwards the batches as they come. Waiting until the peer has visibly
//! lacked them for a while, as with batches of dead nodes, would make them too stale to be of use.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use protocol::ids::{NodeId, OriginId};
use protocol::log::frontier::Frontier;
use protocol::wire::link::{Message, Note};

use super::event::Effect;
use super::limits::MEMBERS_MAX;
use super::origins::Origins;
use super::peer::{Peer, ProposedMark};

/// The members of the run other than this node.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    me: NodeId,
    known: BTreeMap<NodeId, Peer>,
    /// Nodes to which a link is up, members or not.
    links: BTreeSet<NodeId>,
    /// Nodes that have left the run for good.
    left: BTreeSet<NodeId>,
}

impl Peers {
    pub(super) fn new(me: NodeId) -> Self {
        Self {
            me,
            known: BTreeMap::new(),
            links: BTreeSet::new(),
            left: BTreeSet::new(),
        }
    }

    pub(super) fn get(&self, node: NodeId) -> Option<&Peer> {
        self.known.get(&node)
    }

    pub(super) fn get_mut(&mut self, node: NodeId) -> Option<&mut Peer> {
        self.known.get_mut(&node)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Peer)> + Clone {
        self.known.iter().map(|(&node, peer)| (node, peer))
    }

    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.known.keys().copied().collect()
    }

    /// Returns true if a link to a node is up and the node has told on it which batches it has.
    pub(super) fn is_heard(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(Peer::is_heard)
    }

    /// Adds a node that has taken part since the first batch of the run.
    pub(super) fn add_founder(&mut self, node: NodeId) {
        self.known.entry(node).or_default().founds();
    }

    /// Adds a node that takes part in the run: it makes batches, or another member has named it. The log keeps the
    /// batches that the node may need until the node says that it does not need them.
    pub(super) fn add(&mut self, node: NodeId) {
        // A run never has more members than that: further ones are invented by a dishonest peer.
        if node != self.me && !self.left.contains(&node) && self.known.len() < MEMBERS_MAX {
            self.known.entry(node).or_default();
        }
    }

    /// Removes a node that has left the run for good.
    pub(super) fn remove(&mut self, node: NodeId) {
        self.left.insert(node);
        self.known.remove(&node);
        self.lay_relays();
    }

    /// Records that a link is up, to a member or to a node that will become one.
    pub(super) fn link_up(&mut self, node: NodeId) {
        self.links.insert(node);
    }

    /// Starts using a link to a member. Returns `false` if the link is not up, or the node is not a member yet.
    pub(super) fn open_link(&mut self, node: NodeId) -> bool {
        let peer = self.known.get_mut(&node).filter(|peer| !peer.is_quarantined());
        let peer = peer.filter(|_| self.links.contains(&node));
        peer.map(Peer::link_up).is_some()
    }

    /// Records that a link is down or given up. Messages that still come on it are ignored; the next link starts
    /// afresh.
    pub(super) fn link_down(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        self.links.remove(&node);
        if let Some(peer) = self.known.get_mut(&node) {
            peer.link_down();
        }
        self.tell_links(effects);
    }

    /// Quarantines a peer: nothing is taken from it or sent to it any more.
    pub(super) fn quarantine(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        if let Some(peer) = self.known.get_mut(&node) {
            peer.quarantine();
        }
        self.tell_links(effects);
    }

    /// Tells peers which nodes this node has links to, if that has changed.
    pub(super) fn tell_links(&mut self, effects: &mut Vec<Effect>) {
        let linked: BTreeSet<NodeId> = self.linked().collect();
        for (&to, peer) in &mut self.known {
            if peer.tell_links(&linked) {
                effects.push(Effect::note(to, Note::Links(linked.iter().copied().collect())));
            }
        }
        self.lay_relays();
    }

    /// Records the nodes that a peer (`from`) says it has links to. Returns the peers to which this node now relays the
    /// batches of that peer's workers.
    pub(super) fn take_links(&mut self, from: NodeId, links: Vec<NodeId>) -> Vec<NodeId> {
        if let Some(peer) = self.known.get_mut(&from) {
            peer.take_links(links);
        }
        self.lay_relays();
        let relayed = self.iter().filter(|(_, peer)| peer.is_relayed(from));
        relayed.map(|(to, _)| to).collect()
    }

    fn linked(&self) -> impl Iterator<Item = NodeId> {
        self.iter().filter(|(_, peer)| peer.has_link()).map(|(node, _)| node)
    }

    /// Decides anew for which pairs of peers that have no link between them this node relays batches from one to the
    /// other.
    fn lay_relays(&mut self) {
        let nodes: Vec<NodeId> = self.linked().collect();
        let has = |node: NodeId, to: NodeId| Some(self.get(node)?.links()?.contains(&to));
        let is_relayed = |origin_node: NodeId, to: NodeId| {
            // A peer that has not told its links may have any link.
            let apart = has(origin_node, to) == Some(false) && has(to, origin_node) != Some(true);
            let reaches_both = |&&node: &&NodeId| has(node, origin_node) == Some(true) && has(node, to) == Some(true);
            apart && nodes.iter().find(reaches_both).is_none_or(|first| *first > self.me)
        };
        let mut relays: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
        for &to in &nodes {
            let relayed = nodes.iter().copied().filter(|&node| node != to && is_relayed(node, to));
            relays.insert(to, relayed.collect());
        }
        for (node, peer) in &mut self.known {
            peer.relay(relays.remove(node).unwrap_or_default());
        }
    }

    /// Sends a message to all peers that have links, except the one that it came from.
    pub(super) fn announce(&self, except: Option<NodeId>, message: &Message, effects: &mut Vec<Effect>) {
        effects.extend(self.linked().filter(|&to| Some(to) != except).map(|to| Effect::Send {
            to,
            message: message.clone(),
        }));
    }

    /// Tells a peer which batches this node has, if that has changed since the peer was last told.
    pub(super) fn tell(&mut self, to: NodeId, frontier: &Frontier, effects: &mut Vec<Effect>) {
        if self.known.get_mut(&to).is_some_and(|peer| peer.tell(frontier)) {
            let message = Message::Have(frontier.clone());
            effects.push(Effect::Send { to, message });
        }
    }

    /// Proposes a mark (a point after which this node's log holds all batches) to a peer, when the last one is `every`
    /// ticks old.
    pub(super) fn propose_mark(&mut self, to: NodeId, frontier: &Frontier, every: u32, effects: &mut Vec<Effect>) {
        let heard = self.known.get_mut(&to).filter(|peer| peer.is_heard());
        if let Some(mark) = heard.and_then(|peer| peer.propose(frontier, every)) {
            effects.push(self.mark(to, mark));
        }
    }

    /// Proposes a mark (a point after which this node's log holds all batches) again, on a new link, if the peer has
    /// not confirmed it on the last one: the peer may have received it or not.
    pub(super) fn repeat_mark(&self, to: NodeId, effects: &mut Vec<Effect>) {
        let proposed = self.get(to).and_then(Peer::proposed).cloned();
        effects.extend(proposed.map(|mark| self.mark(to, mark)));
    }

    /// Makes the message that proposes a mark (a point after which this node's log holds all batches) to a peer. It
    /// names all members to which this node may have forwarded batches since its previous mark, so that the peer keeps
    /// batches for them, too.
    fn mark(&self, to: NodeId, mark: ProposedMark) -> Effect {
        let others = self.iter().filter(|&(node, peer)| node != to && !peer.is_quarantined());
        let members = others.map(|(node, _)| node).take(MEMBERS_MAX).collect();
        let ProposedMark { number, frontier } = mark;
        let note = Note::Mark {
            number,
            frontier,
            members,
        };
        Effect::note(to, note)
    }

    /// Tells a peer that this node has no replica of the run yet and waits for a snapshot, if `every` ticks have passed
    /// since it last did.
    pub(super) fn tell_newcomer(&mut self, to: NodeId, every: u32, effects: &mut Vec<Effect>) {
        let linked = self.known.get_mut(&to).filter(|peer| peer.has_link());
        if linked.is_some_and(|peer| peer.count_mark_tick(every)) {
            effects.push(Effect::note(to, Note::Newcomer));
        }
    }

    /// Number of linked peers that begin to send `helped` the batches that it lacks before this node does.
    pub(super) fn rank_before_me(&self, helped: NodeId) -> u32 {
        let rivals = self.linked().filter(|&node| node < self.me && node != helped);
        rivals.count() as u32
    }

    /// Number of peers to which a snapshot is on its way.
    pub(super) fn given_snapshots(&self) -> usize {
        self.known.values().filter(|peer| peer.is_given_snapshot()).count()
    }

    /// Returns the union of the batches that the selected peers are known to have.
    pub(super) fn have(&self, among: impl Fn(NodeId) -> bool) -> Frontier {
        let mut known = Frontier::default();
        for (_, peer) in self.iter().filter(|&(node, _)| among(node)) {
            known.merge(peer.has());
        }
        known
    }

    /// Returns the batches that the log need not keep: no member needs them.
    pub(super) fn needless(&self, frontier: &Frontier, origins: &Origins) -> Frontier {
        let mut needless = Frontier::default();
        for (origin, applied) in frontier.iter() {
            // The origin's own node, while it is heard, keeps its batches for all members.
            let elsewhere = origins.node_of(origin).is_some_and(|node| self.is_heard(node));
            let needed = self
                .known
                .values()
                .filter_map(|peer| peer.needs_from(origin, applied, elsewhere));
            needless.raise(origin, needed.min().unwrap_or(applied).min(applied));
        }
        needless
    }

    /// Returns true if all members for which batches are kept have told after which point their own logs hold all
    /// batches. Batches may then be merged, because it is known where merged ranges must begin.
    pub(super) fn have_known_points(&self) -> bool {
        self.known.values().all(Peer::has_known_points)
    }

    /// The sequences in a worker's stream of batches that merged ranges must not span, because a member may have the
    /// batches just up to there.
    pub(super) fn points(&self, origin: OriginId) -> BTreeSet<u64> {
        self.known.values().flat_map(|peer| peer.points(origin)).collect()
    }

    /// Stops keeping batches for peers that have never told after which point their own logs hold all batches; they
    /// will need a snapshot.
    pub(super) fn forget_unmarked(&mut self) {
        let unmarked = self.known.values_mut().filter(|peer| !peer.has_known_points());
        unmarked.for_each(Peer::forget);
    }

    /// Returns the peer for which the log keeps the most batches.
    pub(super) fn furthest_behind(&self, frontier: &Frontier) -> Option<NodeId> {
        let (node, lag) = self
            .iter()
            .filter_map(|(node, peer)| Some((node, peer.kept_lag(frontier)?)))
            .max_by_key(|&(node, lag)| (lag, Reverse(node)))?;
        (lag > 0).then_some(node)
    }

    /// Number of members that this node has ever known, against the limit on their number.
    #[cfg(test)]
    pub(super) fn ever(&self) -> usize {
        self.known.len() + self.left.len()
    }
}
