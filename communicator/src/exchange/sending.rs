//! What goes out: to every peer what it lacks, as batches, as ranges or as a snapshot, within its windows.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::checksum;
use protocol::frontier::Frontier;
use protocol::ids::{NodeId, OriginId};
use protocol::wire::link::OriginInfo;

use super::core::Exchange;
use super::event::Effect;
use super::limits::{Limits, MEMBERS_MAX};
use super::log::Log;
use super::parcel::Outgoing;
use super::peer::Peer;
use super::peer_link::PeerLink;
use super::planted::{Bug, planted};
use super::routing::Routing;
use protocol::wire::link::{Message, Note};
use protocol::wire::snapshot::{EntryKind, LogEntry};

/// How a peer is helped on with one origin.
enum Help {
    Batch(Arc<[u8]>),
    Parcel(Outgoing),
    /// What is kept has lost a bit, up to this sequence.
    Spoilt(u64),
    /// Something is under way that has to arrive first.
    Later,
    Snapshot,
}

impl Exchange {
    pub(super) fn tell(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let frontier = self.ledger.frontier();
        if let Some(link) = self.peers.get_mut(&node).and_then(|peer| peer.link.as_mut())
            && !self.newcomer
            && link.told(frontier)
        {
            let message = Message::Have(frontier.clone());
            effects.push(Effect::Send { to: node, message });
        }
    }

    pub(super) fn tick(&mut self, effects: &mut Vec<Effect>) {
        if let Some(barrier) = &mut self.barrier {
            barrier.tick();
        }
        self.tick_bundling(effects);
        self.tick_passes(effects);
        // The last one to get a batch hears no more about it from those who had it before.
        self.trim();
        self.wait_for_snapshot(effects);
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for &node in &nodes {
            self.tell(node, effects);
            self.mark(node, self.limits.mark_ticks, effects);
            let Limits {
                reset_ticks,
                patience_ticks,
                ..
            } = self.limits;
            let Some(peer) = self.peers.get_mut(&node) else {
                continue;
            };
            let Some(link) = &mut peer.link else {
                continue;
            };
            if link.is_silent(&peer.has, reset_ticks) {
                self.reset(node, effects);
                continue;
            }
            link.remind(reset_ticks);
            let mute = link.is_mute(&peer.has, patience_ticks);
            // All members do the same work for somebody who is behind. For one that stands still none of it is of use.
            if !mute {
                self.look_for_stalls(node);
                self.merge_for(node);
            }
            self.give(node, effects);
            self.pump(node, effects);
        }
    }

    /// Proposes a mark when the last one is so many ticks old. A newcomer has none, but says that it is there.
    pub(super) fn mark(&mut self, node: NodeId, every: u32, effects: &mut Vec<Effect>) {
        if self.newcomer {
            let mut linked = self.peers.get_mut(&node).filter(|peer| peer.link.is_some());
            let time = linked.as_mut().is_some_and(|peer| peer.is_time(every));
            effects.extend(time.then(|| Effect::newcomer(node)));
            return;
        }
        let proposed = self
            .peers
            .get_mut(&node)
            .filter(|peer| peer.is_heard())
            .and_then(|peer| peer.propose(self.ledger.frontier(), every));
        effects.extend(proposed.map(|mark| self.marking(node, mark)));
    }

    /// A mark on its way to a peer, with everybody whom this node may have helped since it last stood there.
    pub(super) fn marking(&self, to: NodeId, (number, frontier): (u64, Frontier)) -> Effect {
        let others = self
            .peers
            .iter()
            .filter(|&(&node, peer)| node != to && !peer.quarantined);
        let message = Message::Note(Note::Mark {
            number,
            frontier,
            members: others.map(|(&node, _)| node).take(MEMBERS_MAX).collect(),
        });
        Effect::Send { to, message }
    }

    /// Counts for how long a peer has lacked each origin's batches without progress. The node that the routing names sends
    /// first; the others step in one after the other, by name, so that two rarely send the same batch.
    fn look_for_stalls(&mut self, node: NodeId) {
        let frontier = self.ledger.frontier();
        let rivals = self
            .peers
            .iter()
            .filter(|&(&other, peer)| other < self.me && other != node && peer.link.is_some());
        let rank = rivals.count() as u32;
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let helped: Vec<(OriginId, u64)> = frontier
            .iter()
            .filter(|(origin, _)| {
                let origin_node = self.origins.get(origin).map(|info| info.node);
                origin_node
                    .is_some_and(|origin_node| origin_node != node && !self.routing.sends(self.me, origin_node, node))
            })
            .collect();
        let Some(link) = &mut peer.link else {
            return;
        };
        let patience = self.limits.patience_ticks.saturating_mul(1 + rank);
        for (origin, applied) in helped {
            link.watch(origin, peer.has.applied(origin), applied, patience);
        }
    }

    /// Whether this node is the one to send an origin's batches to a peer.
    pub(super) fn sends(&self, origin: OriginId, to: NodeId, peer: &Peer) -> bool {
        let origin_node = self.node_of(origin);
        let link = peer.link.as_ref();
        origin_node.zip(link).is_some_and(|(origin_node, link)| {
            sends((self.me, &self.routing), &self.relays, (origin, origin_node), to, link)
        })
    }

    pub(super) fn pump_all(&mut self, effects: &mut Vec<Effect>) {
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            self.pump(node, effects);
        }
    }

    /// Sends a peer what it lacks, as far as its windows reach.
    pub(super) fn pump(&mut self, node: NodeId, effects: &mut Vec<Effect>) {
        let Some(Peer {
            link: Some(link),
            has,
            base,
            refused,
            ..
        }) = self.peers.get_mut(&node)
        else {
            return;
        };
        send_pieces(node, link, &self.limits, effects);
        let mut spoilt = Frontier::default();
        for &OriginInfo {
            origin,
            node: origin_node,
            ..
        } in self.origins.values()
        {
            if !sends(
                (self.me, &self.routing),
                &self.relays,
                (origin, origin_node),
                node,
                link,
            ) {
                continue;
            }
            let applied = self.ledger.frontier().applied(origin);
            while let Some(sent) = link.sent(origin)
                && sent < applied
                && sent.saturating_sub(has.applied(origin)) < self.limits.window
                && link.bytes_under_way() < self.limits.window_bytes
                && !(self.bundling.as_ref()).is_some_and(|bundling| bundling.holds(origin, sent + 1, node))
            {
                match help(link, (base, refused), &self.log, (origin, applied), sent) {
                    Help::Batch(bytes) => {
                        link.send(origin, sent + 1, bytes.len());
                        effects.push(Effect::Send {
                            to: node,
                            message: Message::Batch(bytes),
                        });
                    }
                    Help::Parcel(parcel) => {
                        link.outgoing = Some(parcel);
                        send_pieces(node, link, &self.limits, effects);
                    }
                    Help::Later => break,
                    Help::Spoilt(to) => {
                        spoilt.raise(origin, to);
                        break;
                    }
                    Help::Snapshot => {
                        if link.tell_too_far() {
                            effects.push(Effect::Send {
                                to: node,
                                message: Message::Note(Note::TooFar),
                            });
                        }
                        break;
                    }
                }
            }
        }
        // Whoever lacks it takes a snapshot: the ledger has it, and is audited before it is given.
        if spoilt.iter().next().is_some() {
            effects.push(Effect::Spoilt);
            self.log.trim(&spoilt);
        }
    }
}

/// Whether a node is the one to send an origin's batches to a peer: they go that way, or it relays them, or it helps.
fn sends(
    (me, routing): (NodeId, &Routing),
    relays: &BTreeSet<(NodeId, NodeId)>,
    (origin, origin_node): (OriginId, NodeId),
    to: NodeId,
    link: &PeerLink,
) -> bool {
    let repairs = link.is_helped(origin) && !planted(Bug::DroppedRepair);
    origin_node != to && (routing.sends(me, origin_node, to) || relays.contains(&(origin_node, to)) || repairs)
}

/// What to send a peer next of an origin of which it will have `sent` and this node has `applied`, by the peer's mark and
/// the ranges that it could not take.
///
/// It gets the log's entries as they are. So it inherits their points, and can help whomever this node can help.
fn help(
    link: &PeerLink,
    (base, refused): (&Frontier, &BTreeSet<(OriginId, u64)>),
    log: &Log,
    (origin, applied): (OriginId, u64),
    sent: u64,
) -> Help {
    if link.outgoing.as_ref().is_some_and(|parcel| parcel.blocks(origin)) {
        return Help::Later;
    }
    match log.after(origin, sent) {
        // What has lain here for a while may have lost a bit: the ledger is audited, the log is not.
        Some(entry) if (entry.kind != EntryKind::Batch || entry.to < applied) && !checksum::is_intact(&entry.bytes) => {
            return Help::Spoilt(entry.to);
        }
        Some(entry) if entry.kind == EntryKind::Batch => return Help::Batch(Arc::clone(&entry.bytes)),
        _ if link.outgoing.is_some() => return Help::Later,
        Some(entry) if entry.kind == EntryKind::Bundle => return help_with_bundle(link, refused, log, entry),
        Some(entry) if !refused.contains(&(origin, sent)) => {
            return Help::Parcel(Outgoing::range(origin, entry.to, Arc::clone(&entry.bytes)));
        }
        _ => {}
    }
    // The peer stands within a merged entry. It can subtract what it already has if the range begins at its own mark, or at
    // any earlier point, because it may have taken over a log that has that point.
    let Some(to) = log.end_around(origin, sent) else {
        return Help::Snapshot;
    };
    let range = std::iter::once(base.applied(origin))
        .chain(log.points_before(origin, sent))
        .filter(|&from| !refused.contains(&(origin, from)))
        .find_map(|from| log.merged(origin, from, to));
    range.map_or(Help::Snapshot, |range| {
        Help::Parcel(Outgoing::range(origin, to, range.encode().into()))
    })
}

/// A bundle that comes next of an origin. Those who know its batches by themselves are asked first: who has it for a whole
/// only hands it on when the peer has lacked it for a while.
fn help_with_bundle(link: &PeerLink, refused: &BTreeSet<(OriginId, u64)>, log: &Log, entry: &LogEntry) -> Help {
    let Some(batches) = log.bundled_after(entry.origin, entry.from) else {
        return Help::Snapshot;
    };
    let is_ready = |&(origin, sequence): &(OriginId, u64)| link.sent(origin).is_some_and(|sent| sent + 1 >= sequence);
    if batches
        .iter()
        .any(|&(origin, sequence)| refused.contains(&(origin, sequence - 1)))
    {
        Help::Snapshot
    } else if link.is_helped(entry.origin) && batches.iter().all(is_ready) {
        Help::Parcel(Outgoing::bundle(Arc::clone(batches), Arc::clone(&entry.bytes)))
    } else {
        Help::Later
    }
}

/// Sends what may be under way of the present parcel. When all of a range is, its origin can go on.
fn send_pieces(node: NodeId, link: &mut PeerLink, limits: &Limits, effects: &mut Vec<Effect>) {
    let Some(parcel) = &mut link.outgoing else {
        return;
    };
    if parcel.is_sent() {
        return;
    }
    while let Some(piece) = parcel.next(limits.piece_bytes, limits.parcel_window) {
        effects.push(Effect::Send {
            to: node,
            message: Message::Piece(piece),
        });
    }
    if parcel.is_sent() {
        for (origin, to) in parcel.ends() {
            link.send(origin, to, 0);
        }
    }
}
