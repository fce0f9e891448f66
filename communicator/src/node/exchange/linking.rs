//! Links to the other participants: made, taken when others call, and lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::ids::NodeId;
use protocol::wire::run_plan::Participant;
use ractor::{Actor, ActorProcessingErr};
use tokio::sync::mpsc;

use super::ExchangeState;
use super::peer::PeerConnection;
use crate::exchange::Event;
use crate::node::link::{LinkActor, LinkArguments, LinkMessage, LinkNotice, Traffic};
use crate::pipeline::PipelineEvent;
use crate::run::RunEvent;
use crate::transport::Stream;
use protocol::wire::link::Message;

impl ExchangeState {
    /// Makes a link to a participant.
    pub(super) async fn join(&mut self, participant: Participant) -> Result<(), ActorProcessingErr> {
        // A former process of a node that was started again cannot be reached, and is not to be told of.
        let is_linked = self.plan.topology().are_linked(self.me, participant.node);
        if participant.node == self.me || !is_linked || self.plan.is_succeeded(participant.node) {
            return Ok(());
        }
        let traffic = Arc::new(Traffic::default());
        let link = LinkArguments {
            me: self.me,
            version: self.version.clone(),
            run: self.run,
            peer: participant.clone(),
            security: self.security.clone(),
            times: self.timing.link,
            traffic: Arc::clone(&traffic),
            parent: self.myself.get_derived(),
        };
        let (link, _) = Actor::spawn_linked(None, LinkActor, link, self.myself.get_cell()).await?;
        self.peers
            .insert(participant.node, PeerConnection::new(participant.name, link, traffic));
        // Who holds other layers has no part in these batches.
        if !self.plan.topology().same_slice(self.me, participant.node) {
            return Ok(());
        }
        // A founder has had every batch since the first. That is not known if either side is a guest.
        self.event(if self.plan.is_guest(self.me) || participant.guest {
            Event::Joined(participant.node)
        } else {
            Event::Founder(participant.node)
        });
        Ok(())
    }

    /// Ends the links to former processes of nodes that were started again, once they are gone.
    pub(super) fn unlink_the_succeeded(&mut self) {
        let gone = self.pipeline.liveness().gone.iter().copied();
        for node in gone.filter(|&node| self.plan.is_succeeded(node)).collect::<Vec<_>>() {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.link.stop(None);
                if peer.outbox.take().is_some() {
                    self.unlinked(node);
                }
            }
        }
    }

    /// Tells links whether their peers are heard of: a link to a node that is silent is missing for no reason of its own.
    pub(super) fn tell_links(&self, before: &BTreeSet<NodeId>) {
        let absent = self.pipeline.liveness().absent();
        for node in absent.symmetric_difference(before) {
            if let Some(peer) = self.peers.get(node) {
                let _ = peer.link.cast(LinkMessage::Absent(absent.contains(node)));
            }
        }
    }

    /// A peer's call for a link was taken.
    pub(super) fn accepted(&self, from: NodeId, stream: Stream) {
        if let Some(peer) = self.peers.get(&from) {
            let _ = peer.link.cast(LinkMessage::Up { stream, dialled: false });
        }
    }

    /// Peers that more bytes were written to since this was last asked.
    pub(super) fn moved_on(&mut self) -> Vec<NodeId> {
        let peers = self.peers.iter_mut();
        peers
            .filter_map(|(&node, peer)| peer.has_sent().then_some(node))
            .collect()
    }

    pub(super) fn name(&self, node: NodeId) -> String {
        self.peers
            .get(&node)
            .map_or_else(|| node.to_string(), |peer| peer.name.clone())
    }

    pub(super) fn hear_link(&mut self, notice: LinkNotice) {
        match notice {
            LinkNotice::Up {
                peer,
                generation,
                outbox,
            } => self.linked(peer, generation, outbox),
            LinkNotice::Down { peer, generation } => {
                if let Some(known) = self.peers.get_mut(&peer)
                    && known.is_linked_by(generation)
                {
                    known.outbox = None;
                    self.unlinked(peer);
                }
            }
            LinkNotice::Received {
                peer,
                generation,
                message,
                permit,
            } => {
                if self.peers.get(&peer).is_some_and(|peer| peer.is_linked_by(generation)) {
                    match message {
                        Message::Flow(bytes) => self.pipeline_event(PipelineEvent::FromPeer { from: peer, bytes }),
                        message if self.plan.topology().same_slice(self.me, peer) => {
                            self.event(Event::Received { from: peer, message });
                        }
                        _ => {}
                    }
                }
                drop(permit);
            }
        }
    }

    fn linked(&mut self, node: NodeId, generation: u64, outbox: mpsc::Sender<Message>) {
        if let Some(peer) = self.peers.get_mut(&node) {
            let before = peer.outbox.replace((generation, outbox));
            if before.is_some() {
                self.unlinked(node);
            }
            self.tell_linked(node, true);
            if self.plan.topology().same_slice(self.me, node) {
                self.event(Event::LinkUp(node));
            }
            self.tell_progress();
        }
    }

    /// Tells the run and the core of pipelines that a link is up, or down.
    pub(super) fn tell_linked(&mut self, node: NodeId, up: bool) {
        let run = self.run;
        self.tell_run(RunEvent::Linked { run, node, up });
        self.pipeline_event(if up {
            PipelineEvent::LinkUp(node)
        } else {
            PipelineEvent::LinkDown(node)
        });
    }

    /// A connection is gone, and with it what was under way.
    fn unlinked(&mut self, node: NodeId) {
        self.tell_linked(node, false);
        if self.plan.topology().same_slice(self.me, node) {
            self.event(Event::LinkDown(node));
        }
    }
}
