//! The snapshot that this node needs: the way back for a node that can be helped no other way.

use protocol::ids::NodeId;
use protocol::wire::link::Note;

use super::event::Effect;
use super::peers::Peers;

/// A snapshot that this node needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotRequest {
    /// The node that was asked, or is to be.
    giver: Option<NodeId>,
    /// Ticks since the transfer last made progress.
    ticks: u32,
    /// The ledger is damaged, so that a snapshot is needed even if it holds nothing new.
    pub(super) damaged: bool,
}

/// This node's own need of snapshots.
#[derive(Clone, Debug)]
pub(super) struct Snapshots {
    wanted: Option<SnapshotRequest>,
    /// This node has come late and has nothing yet. A snapshot comes first: then it stands where its giver stands, and the
    /// nodes that can help the giver can help it, too, even before having heard of it.
    newcomer: bool,
}

impl Snapshots {
    /// The need of a node that has nothing yet.
    pub(super) fn new() -> Self {
        Self {
            wanted: None,
            newcomer: true,
        }
    }

    /// This node has what the run begins with.
    pub(super) fn founds(&mut self) {
        self.newcomer = false;
    }

    /// Whether this node has nothing yet.
    pub(super) fn is_newcomer(&self) -> bool {
        self.newcomer
    }

    /// Whether this node waits for a snapshot.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// Whether the ledger is known to be damaged, and not yet replaced.
    pub(super) fn is_damaged(&self) -> bool {
        self.wanted.is_some_and(|wanted| wanted.damaged)
    }

    /// This node needs a snapshot, because a peer says so.
    pub(super) fn want_from(&mut self, giver: NodeId, effects: &mut Vec<Effect>) {
        let wanted = self.request();
        // One at a time: it will help against all others' reasons too.
        if wanted.giver.is_none() {
            wanted.giver = Some(giver);
            self.ask(effects);
        }
    }

    /// This node's ledger is damaged, so that it needs any peer's.
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

    /// A peer says what it has, perhaps for the first time on its link.
    pub(super) fn hears(&mut self, from: NodeId, is_first: bool, effects: &mut Vec<Effect>) {
        if is_first && self.request_to(from).is_some() {
            // The peer has not heard on this link that it was asked.
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

    /// Asks the next peer: the one that was asked last is gone, has nothing to give, or what it gave was no help.
    fn ask_next(&mut self, peers: &Peers, effects: &mut Vec<Effect>) {
        let last = self.wanted.and_then(|wanted| wanted.giver);
        let mut all = peers.iter().filter(|(_, peer)| peer.is_heard()).map(|(node, _)| node);
        let next = all.clone().find(|&node| Some(node) > last).or_else(|| all.next());
        match &mut self.wanted {
            // A peer that cannot help otherwise will say so again on the next link.
            Some(wanted) if next.is_none() && !wanted.damaged => self.wanted = None,
            Some(wanted) => wanted.giver = next,
            None => {}
        }
        self.ask(effects);
    }

    /// One more tick without a snapshot that is wanted: after `patience` of them another peer is asked.
    pub(super) fn tick(&mut self, patience: u32, peers: &Peers, effects: &mut Vec<Effect>) {
        let Some(wanted) = &mut self.wanted else {
            return;
        };
        wanted.ticks += 1;
        if wanted.ticks >= patience || !wanted.giver.is_some_and(|giver| peers.is_heard(giver)) {
            self.ask_next(peers, effects);
        }
    }

    /// A piece of a snapshot has come from a peer.
    pub(super) fn progresses(&mut self, from: NodeId) {
        if let Some(wanted) = &mut self.wanted
            && wanted.giver == Some(from)
        {
            wanted.ticks = 0;
        }
    }

    /// The snapshot that a peer was asked for.
    pub(super) fn request_to(&self, peer: NodeId) -> Option<SnapshotRequest> {
        self.wanted.filter(|wanted| wanted.giver == Some(peer))
    }

    /// The snapshot that came was too old, though it was new when it was made: the next one will be newer, if there is time
    /// for what is under way. At the next tick a peer is asked again.
    pub(super) fn came_too_old(&mut self, patience: u32) {
        if let Some(wanted) = &mut self.wanted {
            wanted.ticks = patience;
        }
    }

    /// The snapshot that came is in the ledger's place.
    pub(super) fn came(&mut self) {
        self.wanted = None;
        self.newcomer = false;
    }
}
