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

/// The cluster crate asks for a shared secret of its own. Membership is proven before a stream gets here, with a real key;
/// this one locks nothing.
const COOKIE: &str = "tau";
/// What the names of our own streams begin with.
const LABEL: &str = "tau#";

/// What happens to sessions.
#[derive(Debug)]
pub enum SessionEvent {
    /// A session is ready for use.
    Ready {
        /// Its number in this process.
        session: u64,
        /// The name that the other side has proven.
        peer: VerifiedPeer,
    },
    /// A session is gone.
    Closed {
        /// Its number in this process.
        session: u64,
        /// Whether the other machine has closed or reset the connection.
        by_peer: bool,
    },
}

/// Why sessions cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The credentials are of no use.
    #[error("the credentials cannot be used: {0}")]
    Credentials(#[from] tokio_rustls::rustls::Error),
    /// The listener that nobody uses could not be locked.
    #[error("the control plane could not be started: {0}")]
    Lock(#[from] CredentialsError),
    /// The cluster's server could not be started.
    #[error("the control plane could not be started: {0}")]
    Server(#[from] ractor::SpawnErr),
}

/// Why a connection did not become a session.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The other end did not complete the session hello, or could not prove its name.
    #[error(
        "the peer did not complete the session hello ({0}): check that both sides run the same release with the same \
             credentials, or both with --insecure"
    )]
    SessionHello(#[from] std::io::Error),
    /// The process at the other end is not the one that was looked for.
    #[error("another process, {0}, answers at this address")]
    Another(VerifiedPeer),
    /// It is not wanted.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// The sessions of this process. There is one such server in a process.
#[derive(Clone)]
pub struct Sessions {
    server: ActorRef<NodeServerMessage>,
    shared: Arc<Shared>,
}

/// What the server's events, connections and the endpoint have in common.
struct Shared {
    identity: Identity,
    times: ControlTimes,
    connections: Mutex<Connections>,
    /// When lies were last complained of.
    complaints: LogThrottle,
    start: Instant,
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        // What a panic leaves behind is a list of connections like any other.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Sessions {
    /// Starts the server under a name that no other process has. Events are told for ever.
    pub async fn start(
        identity: Identity,
        timing: &Timing,
        events: mpsc::UnboundedSender<SessionEvent>,
    ) -> Result<Self, StartError> {
        let name = identity.peer().to_string();
        // The crate cannot do without a listener of its own. Whoever came that way would pass by all that is checked here,
        // so it gets one that nobody outside this machine reaches, behind a lock whose key is thrown away. The name is
        // host name too, because two with the same host and port are taken for one.
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
        // The server has just been started; it listens.
        let _ = server.cast(NodeServerMessage::SubscribeToEvents {
            id: "tau".into(),
            subscription,
        });
        tokio::spawn(sweep(Arc::downgrade(&shared), timing.clocks.sweep));
        Ok(Self { server, shared })
    }

    /// Takes a connection that another process opened.
    pub async fn accept(&self, stream: Stream, address: SocketAddr) -> Result<(), OpenError> {
        self.take(stream, address, None, true).await.map(drop)
    }

    /// Opens a session on a connection to another process, to the one that is looked for, if there is one; it is there when
    /// that is told as an event. Returns the connection's number.
    pub async fn open(
        &self,
        stream: Stream,
        address: SocketAddr,
        wanted: Option<VerifiedPeer>,
    ) -> Result<u64, OpenError> {
        self.take(stream, address, wanted, false).await
    }

    /// Finds out whether a certain process is at the other end of a stream, which is closed then.
    pub async fn probe(&self, mut stream: Stream, wanted: VerifiedPeer) -> Result<(), OpenError> {
        self.exchange_hellos(&mut stream, Some(wanted)).await.map(drop)
    }

    /// Exchanges session hellos with the process at the other end of a stream, which must be the one that is wanted.
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
        // Without a server the process is about to end.
        let _ = self
            .server
            .cast(NodeServerMessage::ConnectionOpenedExternal { stream, is_server });
        Ok(number)
    }

    /// The session on a connection, once there is one.
    pub(super) fn session_on(&self, number: u64) -> Option<u64> {
        self.shared.connections().session_on(number)
    }

    /// Ends a session, so that a new one can take its place.
    pub fn close(&self, session: u64) {
        self.shared.connections().close(session);
    }

    /// Ends all sessions.
    pub fn stop(&self) {
        self.server.stop(None);
    }

    /// The way to the other end of a session.
    pub(super) fn path(&self, session: u64) -> Option<SessionPath> {
        self.shared.connections().path(session)
    }

    /// Who speaks with this token.
    pub(super) fn sender(&self, token: Option<Token>) -> Option<Sender> {
        self.shared.connections().sender(token?)
    }

    /// Something sensible was heard.
    pub(super) fn heard(&self, sender: &Sender) {
        self.shared.connections().heard(sender.number, self.shared.now());
    }

    /// Whether the name of the node in this message is its own. `None` where it has not told that yet.
    pub(super) fn is_named_rightly(&self, sender: &Sender, message: &ControlMessage) -> Option<bool> {
        let mut connections = self.shared.connections();
        match message {
            ControlMessage::Beat(beat) => Some(connections.named(sender.number, &beat.from.name)),
            ControlMessage::Stats(record) => connections.is_called(sender.number, &record.node),
            _ => Some(true),
        }
    }

    /// A process asks something; whether it may.
    pub(super) fn asked(&self, sender: &Sender) -> bool {
        let asked = self.shared.connections().asked(sender.number, self.shared.now());
        self.unless_refused(sender, asked)
    }

    /// A question is about to be answered with so many bytes; whether that may be sent.
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

    /// Somebody said what no honest process says.
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

/// Ends connections whose other end takes too long.
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

/// A session's end of a pipe, with the number of its connection for a name.
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
