//! What the exchange's actor knows of another participant.

use protocol::wire::link::Message;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ractor::ActorRef;
use tokio::sync::mpsc;

use crate::node::link::{LinkMessage, Traffic};

/// The way to a participant.
#[derive(Debug)]
pub(super) struct PeerConnection {
    pub(super) name: String,
    pub(super) link: ActorRef<LinkMessage>,
    pub(super) traffic: Arc<Traffic>,
    pub(super) outbox: Option<(u64, mpsc::Sender<Message>)>,
    /// Bytes sent at the last tick.
    progress: u64,
}

impl PeerConnection {
    /// A participant that there is no connection with yet.
    pub(super) fn new(name: String, link: ActorRef<LinkMessage>, traffic: Arc<Traffic>) -> Self {
        Self {
            name,
            link,
            traffic,
            outbox: None,
            progress: 0,
        }
    }

    /// Whether the connection with this number is the present one. Others may still have something to say.
    pub(super) fn is_linked_by(&self, generation: u64) -> bool {
        self.outbox.as_ref().is_some_and(|(present, _)| *present == generation)
    }

    /// Returns whether more bytes were written to it since this was last called.
    pub(super) fn take_progress(&mut self) -> bool {
        let sent = self.traffic.bytes_out.load(Ordering::Relaxed);
        std::mem::replace(&mut self.progress, sent) != sent
    }
}
