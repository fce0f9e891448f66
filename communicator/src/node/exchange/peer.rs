//! Data of the exchange's actor about another participant.

use protocol::wire::link::Message;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ractor::ActorRef;
use tokio::sync::mpsc;

use crate::node::link::{LinkMessage, Traffic};

/// Connection to a participant: its link's actor, the queue for messages, and the counted traffic.
#[derive(Debug)]
pub(super) struct PeerConnection {
    pub(super) name: String,
    pub(super) link: ActorRef<LinkMessage>,
    pub(super) traffic: Arc<Traffic>,
    pub(super) outbox: Option<(u64, mpsc::Sender<Message>)>,
    /// Bytes sent to the participant up to the last call of `take_progress`. The next call tells from them if more have
    /// been sent.
    progress: u64,
}

impl PeerConnection {
    /// Creates the entry of a participant to which no link is up yet.
    pub(super) fn new(name: String, link: ActorRef<LinkMessage>, traffic: Arc<Traffic>) -> Self {
        Self {
            name,
            link,
            traffic,
            outbox: None,
            progress: 0,
        }
    }

    /// Returns true if the link's connection with this number is the present one. Notices of earlier connections may
    /// still come.
    pub(super) fn is_linked_by(&self, generation: u64) -> bool {
        self.outbox.as_ref().is_some_and(|(present, _)| *present == generation)
    }

    /// Returns true if bytes were written to the peer since the last call.
    pub(super) fn take_progress(&mut self) -> bool {
        let sent = self.traffic.bytes_out.load(Ordering::Relaxed);
        std::mem::replace(&mut self.progress, sent) != sent
    }
}
