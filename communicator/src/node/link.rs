//! The link's actor: one bounded data socket to one peer, for one run. The node with the lower name dials first; when that
//! comes to nothing, perhaps because this side cannot be dialled, the other one does, too.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use protocol::begin::Participant;
use protocol::frame::CHUNK_BYTES;
use protocol::ids::{NodeId, RunId};
use ractor::{Actor, ActorProcessingErr, ActorRef, DerivedActorRef};
use ractor_cluster::RactorMessage;
use tokio::io::{AsyncWriteExt, BufReader, BufWriter, split};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::mailbox::acquire;
use crate::exchange::Message;
use crate::link::{Hello, LinkError, read_hello, read_message, write_hello, write_message};
use crate::timing::LinkTimes;
use crate::transport::{Plane, Security, Stream, dial};

/// Messages waiting to be written: all origins at the start of a link, and then what the exchange's windows let out.
const OUTBOX_MAX: usize = 8192;
/// Messages of one peer that were read and not dealt with: the peer then waits.
const INBOX_MAX: usize = 64;

/// What has crossed a link in this run, over all its connections.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Bytes received.
    pub(crate) bytes_in: AtomicU64,
    /// Bytes sent.
    pub(crate) bytes_out: AtomicU64,
}

/// What a link is told.
#[derive(RactorMessage)]
pub(crate) enum LinkMessage {
    /// Try to reach the peer.
    Dial,
    /// A connection stands; both sides have said who they are.
    Up {
        /// The connection.
        stream: Stream,
        /// This side has dialled.
        dialled: bool,
    },
    /// The connection with this number is gone.
    Down(u64),
    /// Give the present connection up.
    Cut,
}

/// What a link tells.
pub(crate) enum LinkNotice {
    /// A connection is there.
    Up {
        /// To whom.
        peer: NodeId,
        /// Its number.
        generation: u64,
        /// What is written on it.
        outbox: mpsc::Sender<Message>,
    },
    /// A connection is gone.
    Down {
        /// To whom.
        peer: NodeId,
        /// Its number.
        generation: u64,
    },
    /// A message came.
    Received {
        /// From whom.
        peer: NodeId,
        /// On which of its connections.
        generation: u64,
        /// What.
        message: Message,
        /// Room for the next one, when this is done.
        permit: Option<OwnedSemaphorePermit>,
    },
}

/// What the actor is started with.
pub(crate) struct LinkArguments {
    /// This node.
    pub(crate) me: NodeId,
    /// Its release.
    pub(crate) version: String,
    /// The run.
    pub(crate) run: RunId,
    /// The other end.
    pub(crate) peer: Participant,
    /// How to dial.
    pub(crate) security: Security,
    /// How long it waits for what.
    pub(crate) times: LinkTimes,
    /// What is counted.
    pub(crate) traffic: Arc<Traffic>,
    /// Who is told of it.
    pub(crate) parent: DerivedActorRef<LinkNotice>,
}

/// The actor.
pub(crate) struct LinkActor;

/// The actor's state.
pub(crate) struct Link {
    arguments: LinkArguments,
    /// Counts connections, so that the end of an old one is not taken for the end of the present one.
    generation: u64,
    present: Option<Present>,
    pause: Duration,
    /// Since when there is no connection, and whether that was said.
    missing: (Instant, bool),
}

/// The present connection.
struct Present {
    tasks: [AbortHandle; 2],
    since: Instant,
    /// The node with the lower name has dialled it.
    by_lower: bool,
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
        Ok(Link {
            generation: 0,
            present: None,
            pause: arguments.times.pause,
            missing: (Instant::now(), false),
            arguments,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<LinkMessage>,
        message: LinkMessage,
        state: &mut Link,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LinkMessage::Dial => state.dial(&myself),
            LinkMessage::Up { stream, dialled } => state.up(stream, dialled, &myself),
            LinkMessage::Down(generation) if generation == state.generation => state.down(&myself),
            LinkMessage::Down(_) => {}
            LinkMessage::Cut => state.down(&myself),
        }
        Ok(())
    }

    async fn post_stop(&self, _myself: ActorRef<LinkMessage>, state: &mut Link) -> Result<(), ActorProcessingErr> {
        state.abort();
        Ok(())
    }
}

impl Link {
    fn dial(&mut self, myself: &ActorRef<LinkMessage>) {
        let LinkArguments {
            me,
            version,
            run,
            peer,
            security,
            times,
            ..
        } = &self.arguments;
        if self.present.is_some() {
            return;
        }
        let missing = self.missing.0.elapsed();
        if missing > times.say_after && !std::mem::replace(&mut self.missing.1, true) {
            tracing::warn!(
                peer = peer.name,
                address = %peer.address,
                "there is no link to a node: if it cannot be dialled at this address, start it with another --advertise; \
                 others hand on what the two make"
            );
        }
        if *me > peer.node && missing < times.patience {
            let (myself, rest) = (myself.clone(), times.patience.saturating_sub(missing));
            tokio::spawn(async move {
                tokio::time::sleep(rest).await;
                let _ = myself.cast(LinkMessage::Dial);
            });
            return;
        }
        let hello = Hello::Link {
            version: version.clone(),
            run: *run,
            from: *me,
            to: peer.node,
        };
        let (address, node, security) = (peer.address, peer.node, security.clone());
        let (myself, pause, limit) = (myself.clone(), self.pause, times.answer);
        self.pause = (self.pause * 2).min(times.pause_max);
        tokio::spawn(async move {
            match connect(address, node, &security, &hello, limit).await {
                Ok(stream) => drop(myself.cast(LinkMessage::Up { stream, dialled: true })),
                Err(error) => {
                    tracing::debug!(%error, %address, "a link is not made yet");
                    tokio::time::sleep(pause).await;
                    let _ = myself.cast(LinkMessage::Dial);
                }
            }
        });
    }

    /// Takes a connection, in place of the present one: the peer would not make a new one if that still worked.
    fn up(&mut self, stream: Stream, dialled: bool, myself: &ActorRef<LinkMessage>) {
        let lower = self.arguments.me < self.arguments.peer.node;
        let by_lower = dialled == lower;
        let young = |present: &Present| present.by_lower && present.since.elapsed() < self.arguments.times.young;
        if !by_lower && self.present.as_ref().is_some_and(young) {
            return;
        }
        self.abort();
        self.generation += 1;
        self.pause = self.arguments.times.pause;
        let (generation, peer) = (self.generation, self.arguments.peer.node);
        let parent = &self.arguments.parent;
        let (reader, writer) = split(stream);
        let (outbox, messages) = mpsc::channel(OUTBOX_MAX);
        // It has to know of the link before anything comes over it.
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
                tracing::info!(%error, %peer, "a link is gone");
            }
            let _ = myself.cast(LinkMessage::Down(generation));
        };
        let (one, other) = (myself.clone(), myself.clone());
        let reading = tokio::spawn(async move { over(one, reading.await) });
        let writing = tokio::spawn(async move { over(other, writing.await) });
        self.present = Some(Present {
            tasks: [reading.abort_handle(), writing.abort_handle()],
            since: Instant::now(),
            by_lower,
        });
    }

    fn down(&mut self, myself: &ActorRef<LinkMessage>) {
        if self.present.is_some() {
            self.abort();
            self.missing = (Instant::now(), false);
            let (peer, generation) = (self.arguments.peer.node, self.generation);
            let _ = self
                .arguments
                .parent
                .send_message(LinkNotice::Down { peer, generation });
            let _ = myself.cast(LinkMessage::Dial);
        }
    }

    fn abort(&mut self) {
        for task in self.present.take().into_iter().flat_map(|present| present.tasks) {
            task.abort();
        }
    }
}

/// Calls a peer and hears that it is the one that was meant.
async fn connect(
    address: SocketAddr,
    node: NodeId,
    security: &Security,
    hello: &Hello,
    limit: Duration,
) -> Result<Stream, LinkError> {
    let dialled = dial(address, Plane::Data, security, limit).await;
    let mut stream = dialled.map_err(|error| LinkError::Broken(std::io::Error::other(error)))?;
    let answer = async {
        write_hello(&mut stream, hello).await?;
        read_hello(&mut stream).await
    };
    match timeout(limit, answer).await {
        Ok(Ok(Hello::Accepted { from })) if from == node => Ok(stream),
        Ok(Err(error)) => Err(error),
        Ok(Ok(_)) => Err(LinkError::OutOfPlace),
        Err(_) => Err(LinkError::Broken(std::io::ErrorKind::TimedOut.into())),
    }
}

async fn read(
    mut reader: impl tokio::io::AsyncRead + Unpin,
    peer: NodeId,
    generation: u64,
    traffic: Arc<Traffic>,
    parent: DerivedActorRef<LinkNotice>,
) -> Result<(), LinkError> {
    let room = Arc::new(Semaphore::new(INBOX_MAX));
    while let Some((message, bytes)) = read_message(&mut reader).await? {
        traffic.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
        let permit = acquire(&room).await;
        let received = LinkNotice::Received {
            peer,
            generation,
            message,
            permit,
        };
        if parent.send_message(received).is_err() {
            break;
        }
    }
    Ok(())
}

async fn write(
    mut writer: BufWriter<impl tokio::io::AsyncWrite + Unpin>,
    mut messages: mpsc::Receiver<Message>,
    traffic: Arc<Traffic>,
) -> Result<(), LinkError> {
    while let Some(message) = messages.recv().await {
        let bytes = write_message(&mut writer, &message).await?;
        traffic.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
        if messages.is_empty() {
            writer.flush().await?;
        }
    }
    Ok(())
}
