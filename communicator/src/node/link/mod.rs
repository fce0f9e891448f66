//! The link's actor: one bounded data socket to one peer, for one run.

mod connection;
mod dialling;
mod messages;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::wire::frame::CHUNK_BYTES;
use protocol::wire::link::Hello;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::io::{BufReader, BufWriter, split};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::link::LinkError;
use crate::transport::Stream;
use connection::{connect, read, write};
use dialling::{Dialling, Step};
pub(crate) use messages::{LinkArguments, LinkMessage, LinkNotice, Traffic};

/// Maximum number of messages that wait to be written to a link: announcements of all workers' streams of batches at
/// its start, and later as many messages as the exchange's windows allow.
const OUTBOX_MAX: usize = 8192;

pub(crate) struct LinkActor;

pub(crate) struct Link {
    arguments: LinkArguments,
    myself: ActorRef<LinkMessage>,
    start: Instant,
    dialling: Dialling,
    /// Number of the link's newest connection, so that the end of an old one is not taken for the end of the present
    /// one.
    generation: u64,
    /// Tasks that read from the present connection and write to it.
    tasks: Option<[AbortHandle; 2]>,
}

impl Actor for LinkActor {
    type Msg = LinkMessage;
    type State = Link;
    type Arguments = LinkArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<LinkMessage>,
        arguments: LinkArguments,
    ) -> Result<Link, ActorProcessingErr> {
        let _ = myself.cast(LinkMessage::Dial);
        let is_lower = arguments.me < arguments.peer.node;
        Ok(Link {
            dialling: Dialling::new(is_lower, arguments.times, Duration::ZERO),
            arguments,
            myself,
            start: Instant::now(),
            generation: 0,
            tasks: None,
        })
    }

    async fn handle(
        &self,
        _myself: ActorRef<LinkMessage>,
        message: LinkMessage,
        state: &mut Link,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LinkMessage::Dial => state.dial(),
            LinkMessage::Up { stream, dialled } => state.up(stream, dialled),
            LinkMessage::Down(generation) if generation == state.generation => state.down(),
            LinkMessage::Down(_) => {}
            LinkMessage::Cut => state.down(),
            LinkMessage::Absent(absent) => state.dialling.note_absent(absent, state.start.elapsed()),
        }
        Ok(())
    }

    async fn post_stop(&self, _myself: ActorRef<LinkMessage>, state: &mut Link) -> Result<(), ActorProcessingErr> {
        state.abort();
        Ok(())
    }
}

impl Link {
    fn dial(&mut self) {
        let now = self.start.elapsed();
        if self.dialling.take_due_notice(now) {
            let peer = &self.arguments.peer;
            let why = if self.dialling.is_reached() {
                "the link to a peer is lost; this node keeps dialling the peer, and other nodes relay batches between the two"
            } else {
                "there is no link to a peer, and other nodes relay batches between the two: if the peer cannot be dialled at \
                 this address, start it with another --advertise"
            };
            tracing::warn!(event = "link_missing", peer = peer.name, address = %peer.address, "{why}");
        }
        match self.dialling.next(now) {
            Step::Nothing => {}
            Step::Wait(rest) => {
                self.myself.send_after(rest, || LinkMessage::Dial);
            }
            Step::Dial(pause) => self.call(pause),
        }
    }

    /// Dials the peer in a task of its own. If that fails, the next attempt follows after the pause.
    fn call(&self, pause: Duration) {
        let LinkArguments {
            me,
            version,
            run,
            peer,
            security,
            times,
            ..
        } = &self.arguments;
        let hello = Hello::Link {
            version: version.clone(),
            run: *run,
            from: *me,
            to: peer.node,
        };
        let (address, node, security) = (peer.address, peer.node, security.clone());
        let (myself, limit) = (self.myself.clone(), times.answer);
        tokio::spawn(async move {
            match connect(address, node, &security, &hello, limit).await {
                Ok(stream) => drop(myself.cast(LinkMessage::Up { stream, dialled: true })),
                Err(error) => {
                    tracing::debug!(
                        event = "link_dial_failed", %error, %address,
                        "cannot establish a link to a peer yet; retrying"
                    );
                    tokio::time::sleep(pause).await;
                    let _ = myself.cast(LinkMessage::Dial);
                }
            }
        });
    }

    /// Takes a new connection for the link and tells the exchange, unless the present connection is to stay.
    fn up(&mut self, stream: Stream, dialled: bool) {
        if !self.dialling.take_connection(dialled, self.start.elapsed()) {
            return;
        }
        self.abort();
        self.generation += 1;
        let (generation, peer) = (self.generation, self.arguments.peer.node);
        let parent = &self.arguments.parent;
        let (reader, writer) = split(stream);
        let (outbox, messages) = mpsc::channel(OUTBOX_MAX);
        // The exchange has to know of the link before a message comes over it.
        let _ = parent.send_message(LinkNotice::Up {
            peer,
            generation,
            outbox,
        });
        let reading = read(
            BufReader::with_capacity(CHUNK_BYTES, reader),
            peer,
            generation,
            Arc::clone(&self.arguments.traffic),
            parent.clone(),
        );
        let writing = write(
            BufWriter::with_capacity(CHUNK_BYTES, writer),
            messages,
            Arc::clone(&self.arguments.traffic),
        );
        let over = move |myself: ActorRef<LinkMessage>, ended: Result<(), LinkError>| {
            if let Err(error) = ended {
                tracing::info!(event = "link_broken", %error, %peer, "the link to a peer broke");
            }
            let _ = myself.cast(LinkMessage::Down(generation));
        };
        let (one, other) = (self.myself.clone(), self.myself.clone());
        let reading = tokio::spawn(async move { over(one, reading.await) });
        let writing = tokio::spawn(async move { over(other, writing.await) });
        self.tasks = Some([reading.abort_handle(), writing.abort_handle()]);
    }

    fn down(&mut self) {
        if self.dialling.lost(self.start.elapsed()) {
            self.abort();
            let (peer, generation) = (self.arguments.peer.node, self.generation);
            let _ = self
                .arguments
                .parent
                .send_message(LinkNotice::Down { peer, generation });
            let _ = self.myself.cast(LinkMessage::Dial);
        }
    }

    fn abort(&mut self) {
        for task in self.tasks.take().into_iter().flatten() {
            task.abort();
        }
    }
}
