//! Sessions with other processes of the cluster: one for each node, and one for each client.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use protocol::wire::control::ControlMessage;
use ractor::{Actor, ActorRef};
use ractor_cluster::node::{NodeConnectionMode, NodeServerSessionInformation};
use ractor_cluster::{
    BoxRead, BoxWrite, ClusterBidiStream, IncomingEncryptionMode, NodeEventSubscription, NodeServer, NodeServerMessage,
};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use super::connections::{Connections, Refusal, Sender, SessionPath};
use super::frames::{FRAME_BYTES_MAX, FrameRules};
use super::identity::{Identity, VerifiedPeer};
use super::pump::{EndedBy, pipe, pump};
use super::session_hello::{SessionHello, Token, exchange_hellos};
use crate::log_throttle::LogThrottle;
use crate::timing::{ControlTimes, Timing};
use crate::transport::{CredentialsError, Stream, tls};

/// Shared secret that `ractor_cluster` asks for. It protects nothing: processes prove their membership with a real key
/// before a session is opened.
const COOKIE: &str = "tau";
/// Prefix of the labels by which Tau recognises its own connections in the events of `ractor_cluster`.
const LABEL: &str = "tau#";

/// Event in the life of a session with another process: it is ready for messages, or gone.
#[derive(Debug)]
pub enum SessionEvent {
    /// A session is ready for use.
    Ready {
        /// Number of the session in this process.
        session: u64,
        /// Name that the process at the other end of the session has proven.
        peer: VerifiedPeer,
    },
    /// A session is gone.
    Closed {
        /// Number of the session in this process.
        session: u64,
        /// True if the session ended because the other machine closed or reset the connection.
        by_peer: bool,
    },
}

/// Reason for which the control plane (the connections for messages and requests) of a process could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The TLS credentials cannot be used.
    #[error("the credentials cannot be used: {0}")]
    Credentials(#[from] tokio_rustls::rustls::Error),
    /// The key pair for the listener that `ractor_cluster` insists on could not be made.
    #[error("the control plane could not be started: {0}")]
    Lock(#[from] CredentialsError),
    /// The server of `ractor_cluster` could not be started.
    #[error("the control plane could not be started: {0}")]
    Server(#[from] ractor::SpawnErr),
}

/// Reason for which a connection did not become a session.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The other end did not complete the session hello, or could not prove its name.
    #[error(
        "the peer did not complete the session hello ({0}): check that both sides run the same release with the same \
             credentials, or both with --insecure"
    )]
    SessionHello(#[from] std::io::Error),
    /// The process at the other end is not the wanted one.
    #[error("another process, {0}, answers at this address")]
    Another(VerifiedPeer),
    /// This process refused the connection.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// The sessions of this process with others, and the server of `ractor_cluster` that runs them. There is one in a
/// process.
#[derive(Clone)]
pub struct Sessions {
    server: ActorRef<NodeServerMessage>,
    shared: Arc<Shared>,
}

/// State of this process's sessions, which the handler of the server's events, the tasks of the connections and the
/// endpoint share.
struct Shared {
    identity: Identity,
    times: ControlTimes,
    connections: Mutex<Connections>,
    /// Throttle for log lines about invalid messages of peers.
    complaints: LogThrottle,
    start: Instant,
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        // A panic leaves a list of connections that is as good as any other.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Sessions {
    /// Starts `ractor_cluster`'s server under a name that no other process has. Session events are sent to `events`.
    pub async fn start(
        identity: Identity,
        timing: &Timing,
        events: mpsc::UnboundedSender<SessionEvent>,
    ) -> Result<Self, StartError> {
        let name = identity.peer().to_string();
        // `ractor_cluster` cannot do without a listener of its own, and connections to it would bypass all checks of
        // this module. So it listens on the loopback address, with a key that is thrown away. The process's name is its
        // host name, too, because the crate takes two processes with the same host and port for one.
        let server = NodeServer::new(
            0,
            COOKIE.into(),
            name.clone(),
            name,
            Some(IncomingEncryptionMode::Tls(tls::locked()?)),
            Some(NodeConnectionMode::Isolated),
        )
        .with_listen_addr(IpAddr::V4(Ipv4Addr::LOCALHOST))
        .with_max_inbound_frame_size(FRAME_BYTES_MAX as u64);
        let (server, _) = Actor::spawn(None, server, ()).await?;
        let shared = Arc::new(Shared {
            connections: Mutex::new(Connections::new(identity.peer(), timing.control)),
            identity,
            times: timing.control,
            complaints: LogThrottle::default(),
            start: Instant::now(),
        });
        let subscription = Box::new(Subscription {
            events,
            shared: Arc::clone(&shared),
        });
        // The server has just been started, so it takes messages.
        let _ = server.cast(NodeServerMessage::SubscribeToEvents {
            id: "tau".into(),
            subscription,
        });
        tokio::spawn(sweep(Arc::downgrade(&shared), timing.clocks.sweep));
        Ok(Self { server, shared })
    }

    /// Opens a session on a connection that another process has made.
    pub async fn accept(&self, stream: Stream, address: SocketAddr) -> Result<(), OpenError> {
        self.take(stream, address, None, true).await.map(drop)
    }

    /// Opens a session on a connection to another process, which must be the wanted one if there is one.
    /// [`SessionEvent::Ready`] follows. Returns the connection's number.
    pub async fn open(
        &self,
        stream: Stream,
        address: SocketAddr,
        wanted: Option<VerifiedPeer>,
    ) -> Result<u64, OpenError> {
        self.take(stream, address, wanted, false).await
    }

    /// Checks that the wanted process is at the other end of a stream, and closes the stream.
    pub async fn probe(&self, mut stream: Stream, wanted: VerifiedPeer) -> Result<(), OpenError> {
        self.exchange_hellos(&mut stream, Some(wanted)).await.map(drop)
    }

    /// Exchanges session hellos with the process at the other end of a stream, which must be the wanted one if there is
    /// one.
    async fn exchange_hellos(
        &self,
        stream: &mut Stream,
        wanted: Option<VerifiedPeer>,
    ) -> Result<SessionHello, OpenError> {
        let hello = exchange_hellos(stream, &self.shared.identity, self.shared.times.session_hello).await?;
        if wanted.is_some_and(|wanted| wanted != hello.peer) {
            return Err(OpenError::Another(hello.peer));
        }
        Ok(hello)
    }

    async fn take(
        &self,
        mut stream: Stream,
        address: SocketAddr,
        wanted: Option<VerifiedPeer>,
        is_server: bool,
    ) -> Result<u64, OpenError> {
        let hello = self.exchange_hellos(&mut stream, wanted).await?;
        let admitted = self.shared.connections().admit(hello, address, self.shared.now());
        let (number, session_stream) = admitted?;
        let (ours, session) = pipe();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let ended = |by| shared.connections().gone(number, by);
            let pumped = pump(
                stream,
                ours,
                &session_stream,
                FrameRules::new(hello.peer),
                shared.times,
                ended,
            )
            .await;
            if let Err(error) = pumped {
                tracing::debug!(
                    event = "control_connection_ended", peer = %hello.peer, %address, %error,
                    "a control-plane connection has ended"
                );
            }
        });
        let stream = Box::new(Piped { pipe: session, number });
        // Without the server, the process is about to end.
        let _ = self
            .server
            .cast(NodeServerMessage::ConnectionOpenedExternal { stream, is_server });
        Ok(number)
    }

    /// Returns the session on a connection, once it is ready.
    pub(super) fn session_on(&self, number: u64) -> Option<u64> {
        self.shared.connections().session_on(number)
    }

    /// Ends a session, so that a new one with the same process can take its place.
    pub fn close(&self, session: u64) {
        self.shared.connections().close(session);
    }

    /// Ends all sessions.
    pub fn stop(&self) {
        self.server.stop(None);
    }

    /// Returns the connection and the token for messages to the other end of a session; `None` if the session is gone.
    pub(super) fn path(&self, session: u64) -> Option<SessionPath> {
        self.shared.connections().path(session)
    }

    /// Returns the sender to which this process gave the token; `None` if it gave the token to no present connection.
    pub(super) fn sender(&self, token: Option<Token>) -> Option<Sender> {
        self.shared.connections().sender(token?)
    }

    /// Records that a valid message came from this sender, so that its connection is not ended for silence.
    pub(super) fn heard(&self, sender: &Sender) {
        self.shared.connections().heard(sender.number, self.shared.now());
    }

    /// Returns true if a message gives its sender's own name for people, or no name; `None` if the sender has not told
    /// its name yet.
    pub(super) fn is_named_rightly(&self, sender: &Sender, message: &ControlMessage) -> Option<bool> {
        let mut connections = self.shared.connections();
        match message {
            ControlMessage::Beat(beat) => Some(connections.named(sender.number, &beat.from.name)),
            ControlMessage::Stats(record) => connections.is_called(sender.number, &record.node),
            _ => Some(true),
        }
    }

    /// Counts a request of a process. Returns false if the process may not ask now; its connection is then closed.
    pub(super) fn asked(&self, sender: &Sender) -> bool {
        let asked = self.shared.connections().asked(sender.number, self.shared.now());
        self.unless_refused(sender, asked)
    }

    /// Counts a reply of this many bytes. Returns false if it may not be sent; the connection is then closed.
    pub(super) fn answered(&self, sender: &Sender, bytes: usize) -> bool {
        let answered = self
            .shared
            .connections()
            .answered(sender.number, bytes, self.shared.now());
        self.unless_refused(sender, answered)
    }

    fn unless_refused(&self, sender: &Sender, outcome: Result<(), Refusal>) -> bool {
        if let Err(refusal) = outcome
            && refusal != Refusal::Gone
        {
            tracing::warn!(
                event = "control_connection_closed", peer = %sender.peer, address = %sender.address, %refusal,
                "this process closes the control-plane connection to a peer"
            );
            self.shared.connections().send_away(sender.number);
        }
        outcome.is_ok()
    }

    /// Counts a protocol violation of a sender and logs it.
    pub(super) fn violated(&self, sender: &Sender, violation: &dyn std::fmt::Display) {
        let away = self.shared.connections().violated(sender.number, self.shared.now());
        let due = self.shared.complaints.is_due(Instant::now());
        if away {
            tracing::warn!(
                event = "peer_banned",
                peer = %sender.peer, address = %sender.address, %violation,
                "a peer keeps sending invalid messages; its connection is closed and the peer is banned for one minute"
            );
        } else if due {
            tracing::warn!(
                event = "message_rejected",
                peer = %sender.peer, address = %sender.address, %violation,
                "ignored an invalid message from a peer"
            );
        }
    }
}

/// Ends, periodically, the connections whose other ends take too long.
async fn sweep(shared: Weak<Shared>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let late = shared.connections().sweep(shared.now());
        for (sender, refusal) in late {
            tracing::info!(
                event = "control_connection_closed", peer = %sender.peer, address = %sender.address, %refusal,
                "this process closes the control-plane connection to a peer"
            );
        }
    }
}

struct Subscription {
    events: mpsc::UnboundedSender<SessionEvent>,
    shared: Arc<Shared>,
}

impl NodeEventSubscription for Subscription {
    fn node_session_opened(&self, session: NodeServerSessionInformation) {
        let number = session.peer_addr.strip_prefix(LABEL);
        let number = number.and_then(|number| number.parse().ok());
        if !number.is_some_and(|number| self.shared.connections().opened(session.node_id, number)) {
            session
                .actor
                .stop(Some("the connection of this session is already closed".into()));
        }
    }

    fn node_session_authenticated(&self, _session: NodeServerSessionInformation) {}

    fn node_session_ready(&self, session: NodeServerSessionInformation) {
        let session = session.node_id;
        let ready = self.shared.connections().ready(session, self.shared.now());
        if let Some(peer) = ready {
            let _ = self.events.send(SessionEvent::Ready { session, peer });
        }
    }

    fn node_session_disconnected(&self, session: NodeServerSessionInformation) {
        let session = session.node_id;
        let by_peer = self.shared.connections().session_gone(session) == EndedBy::VerifiedPeer;
        let _ = self.events.send(SessionEvent::Closed { session, by_peer });
    }
}

/// A session's end of a pipe, labelled with the number of its connection.
struct Piped {
    pipe: DuplexStream,
    number: u64,
}

impl ClusterBidiStream for Piped {
    fn split(self: Box<Self>) -> (BoxRead, BoxWrite) {
        let (reader, writer) = tokio::io::split(self.pipe);
        (Box::new(reader), Box::new(writer))
    }

    fn peer_label(&self) -> Option<String> {
        Some(format!("{LABEL}{}", self.number))
    }
}
