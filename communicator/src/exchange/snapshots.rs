//! The snapshot that this node needs: the last resort for a node that neither batches nor merged ranges can help.

use protocol::ids::NodeId;
use protocol::wire::link::Note;

use super::event::Effect;
use super::peers::Peers;

/// This node's request to a peer for a snapshot (the peer's whole replica).
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotRequest {
    /// The node that was asked for a snapshot, or is to be asked.
    giver: Option<NodeId>,
    /// Ticks since the snapshot was requested, or since a piece of it last came.
    ticks: u32,
    /// True if this node's replica is damaged, so that a snapshot is needed even if it holds nothing new.
    pub(super) damaged: bool,
}

/// This node's need of snapshots (whole replicas of peers): the current request, if any.
#[derive(Clone, Debug)]
pub(super) struct Snapshots {
    wanted: Option<SnapshotRequest>,
    /// True until this node has its first ledger (its replica). A node that joined late, drew other first weights or
    /// lacks the run's checkpoint gets it from a peer's snapshot and takes no batches before: so every node that can
    /// send that peer the batches that it lacks can do so for this node, too, even if it has not heard from this node.
    newcomer: bool,
}

impl Snapshots {
    /// Returns the state of a node that has no replica of the run yet.
    pub(super) fn new() -> Self {
        Self {
            wanted: None,
            newcomer: true,
        }
    }

    /// Records that this node holds the first weights of the run and needs no snapshot.
    pub(super) fn founds(&mut self) {
        self.newcomer = false;
    }

    /// Returns true if this node has no ledger (its replica) of the run yet.
    pub(super) fn is_newcomer(&self) -> bool {
        self.newcomer
    }

    /// Returns true if this node waits for a snapshot (a peer's whole replica).
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.wanted.is_some_and(|wanted| wanted.damaged)
    }

    /// Requests a snapshot from a peer that has told this node that nothing else can help it, or that is the first to
    /// answer a node without a replica. There is one request at a time.
    pub(super) fn want_from(&mut self, giver: NodeId, effects: &mut Vec<Effect>) {
        let wanted = self.request();
        // One request at a time: its snapshot will also serve the other peers' reasons.
        if wanted.giver.is_none() {
            wanted.giver = Some(giver);
            self.ask(effects);
        }
    }

    /// Requests a snapshot from any peer, because this node's replica is damaged.
    pub(super) fn want_for_damage(&mut self, peers: &Peers, effects: &mut Vec<Effect>) {
        let wanted = self.request();
        wanted.damaged = true;
        if wanted.giver.is_none() {
            self.ask_next(peers, effects);
        }
    }

    fn request(&mut self) -> &mut SnapshotRequest {
        self.wanted.get_or_insert(SnapshotRequest {
            giver: None,
            ticks: 0,
            damaged: false,
        })
    }

    /// Handles a peer's message that tells which batches it has. If a snapshot was requested from this peer and the
    /// link is new, the request is repeated on it; a node without a replica requests its first snapshot from the peer.
    pub(super) fn hears(&mut self, from: NodeId, is_first: bool, effects: &mut Vec<Effect>) {
        if is_first && self.request_to(from).is_some() {
            // The link is new, so the peer has not received the request on it.
            self.ask(effects);
        } else if self.newcomer {
            self.want_from(from, effects);
        }
    }

    fn ask(&mut self, effects: &mut Vec<Effect>) {
        if let Some(wanted) = &mut self.wanted {
            wanted.ticks = 0;
            effects.extend(wanted.giver.map(|to| Effect::note(to, Note::Ask)));
        }
    }

    /// Asks the next peer for a snapshot, because the last one is gone, has nothing to give, or its snapshot did not
    /// help.
    fn ask_next(&mut self, peers: &Peers, effects: &mut Vec<Effect>) {
        let last = self.wanted.and_then(|wanted| wanted.giver);
        let mut all = peers.iter().filter(|(_, peer)| peer.is_heard()).map(|(node, _)| node);
        let next = all.clone().find(|&node| Some(node) > last).or_else(|| all.next());
        match &mut self.wanted {
            // A peer that can help with a snapshot only will say so again on the next link.
            Some(wanted) if next.is_none() && !wanted.damaged => self.wanted = None,
            Some(wanted) => wanted.giver = next,
            None => {}
        }
        self.ask(effects);
    }

    /// Counts a tick of the request for a snapshot: after `patience` ticks without progress another peer is asked.
    pub(super) fn tick(&mut self, patience: u32, peers: &Peers, effects: &mut Vec<Effect>) {
        let Some(wanted) = &mut self.wanted else {
            return;
        };
        wanted.ticks += 1;
        if wanted.ticks >= patience || !wanted.giver.is_some_and(|giver| peers.is_heard(giver)) {
            self.ask_next(peers, effects);
        }
    }

    /// Records that a piece of a snapshot has come from a peer: if it was requested from that peer, the time limit for
    /// the request starts anew.
    pub(super) fn progresses(&mut self, from: NodeId) {
        if let Some(wanted) = &mut self.wanted
            && wanted.giver == Some(from)
        {
            wanted.ticks = 0;
        }
    }

    /// The current request for a snapshot, if it is directed to this peer.
    pub(super) fn request_to(&self, peer: NodeId) -> Option<SnapshotRequest> {
        self.wanted.filter(|wanted| wanted.giver == Some(peer))
    }

    /// Records that the requested snapshot was already too old when it arrived. A peer is asked again at the next tick:
    /// by then the batches in flight may have arrived, so the next snapshot may fit.
    pub(super) fn came_too_old(&mut self, patience: u32) {
        if let Some(wanted) = &mut self.wanted {
            wanted.ticks = patience;
        }
    }

    /// Records that the requested snapshot has replaced this node's replica.
    pub(super) fn came(&mut self) {
        self.wanted = None;
        self.newcomer = false;
    }
}
