//! Sessions with other processes of the cluster: one for each node, and one for each client.

use std::net::{IpAddr, Ipv4Addr};

use ractor::{Actor, ActorRef};
use ractor_cluster::node::{NodeConnectionMode, NodeServerSessionInformation};
use ractor_cluster::{
    BoxRead, BoxWrite, ClusterBidiStream, IncomingEncryptionMode, NodeEventSubscription, NodeServer, NodeServerMessage,
    client_connect_external,
};
use tokio::sync::mpsc;

use crate::transport::{Security, Stream, tls};

/// The cluster crate asks for a shared secret of its own. Membership is proven before a stream gets here, with a real key;
/// this one locks nothing.
const COOKIE: &str = "tau";
/// Control messages are small; one that is larger is a mistake or an attack.
const FRAME_BYTES_MAX: u64 = 1 << 20;

/// What happens to sessions.
#[derive(Debug)]
pub enum SessionEvent {
    /// A session is ready for use.
    Ready {
        /// Its number in this process.
        session: u64,
        /// The name that the other side gave itself.
        peer: String,
    },
    /// A session is gone.
    Closed {
        /// Its number in this process.
        session: u64,
    },
}

/// Why sessions cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The credentials are of no use.
    #[error("the credentials cannot be used: {0}")]
    Credentials(#[from] tokio_rustls::rustls::Error),
    /// The cluster's server could not be started.
    #[error("the control plane could not be started: {0}")]
    Server(#[from] ractor::SpawnErr),
}

/// The sessions of this process. There is one such server in a process.
#[derive(Clone)]
pub struct Sessions {
    server: ActorRef<NodeServerMessage>,
}

impl Sessions {
    /// Starts the server under a name that no other process has. Events are told for ever.
    pub async fn start(
        name: &str,
        security: &Security,
        events: mpsc::UnboundedSender<SessionEvent>,
    ) -> Result<Self, StartError> {
        let encryption = match tls::acceptor(security)? {
            Some(acceptor) => IncomingEncryptionMode::Tls(acceptor),
            None => IncomingEncryptionMode::Raw,
        };
        // The crate cannot do without a listener of its own: it gets one that nobody outside this machine reaches, with
        // the same proof of membership. The name is host name too, because two with the same host and port are taken
        // for one.
        let server = NodeServer::new(
            0,
            COOKIE.into(),
            name.into(),
            name.into(),
            Some(encryption),
            Some(NodeConnectionMode::Isolated),
        )
        .with_listen_addr(IpAddr::V4(Ipv4Addr::LOCALHOST))
        .with_max_inbound_frame_size(FRAME_BYTES_MAX);
        let (server, _) = Actor::spawn(None, server, ()).await?;
        let subscription = Box::new(Subscription(events));
        // The server has just been started; it listens.
        let _ = server.cast(NodeServerMessage::SubscribeToEvents {
            id: "tau".into(),
            subscription,
        });
        Ok(Self { server })
    }

    /// Takes a connection that another process opened.
    pub fn accept(&self, stream: Stream, label: String) {
        let stream = Box::new(Labelled { stream, label });
        let opened = NodeServerMessage::ConnectionOpenedExternal {
            stream,
            is_server: true,
        };
        // Without a server the process is about to end.
        let _ = self.server.cast(opened);
    }

    /// Opens a session on a connection to another process; it is there when that is told as an event.
    pub async fn open(&self, stream: Stream, label: String) {
        let _ = client_connect_external(&self.server, Box::new(Labelled { stream, label })).await;
    }

    /// Ends a session that hangs, so that a new one can take its place.
    pub async fn close(&self, session: u64) {
        let sessions = self.server.call(NodeServerMessage::GetSessions, None).await;
        if let Ok(ractor::rpc::CallResult::Success(sessions)) = sessions
            && let Some(found) = sessions.get(&session)
        {
            found.actor.stop(Some("silent".into()));
        }
    }

    /// Ends all sessions.
    pub fn stop(&self) {
        self.server.stop(None);
    }
}

struct Subscription(mpsc::UnboundedSender<SessionEvent>);

impl NodeEventSubscription for Subscription {
    fn node_session_opened(&self, _session: NodeServerSessionInformation) {}

    fn node_session_authenticated(&self, _session: NodeServerSessionInformation) {}

    fn node_session_ready(&self, session: NodeServerSessionInformation) {
        // The name comes as name@host, and both are the same.
        let peer = session.peer_name.map(|name| name.name).unwrap_or_default();
        let peer = peer.split('@').next().unwrap_or_default().to_string();
        let session = session.node_id;
        let _ = self.0.send(SessionEvent::Ready { session, peer });
    }

    fn node_session_disconnected(&self, session: NodeServerSessionInformation) {
        let session = session.node_id;
        let _ = self.0.send(SessionEvent::Closed { session });
    }
}

/// A stream with a name for logs.
struct Labelled {
    stream: Stream,
    label: String,
}

impl ClusterBidiStream for Labelled {
    fn split(self: Box<Self>) -> (BoxRead, BoxWrite) {
        let (reader, writer) = tokio::io::split(self.stream);
        (Box::new(reader), Box::new(writer))
    }

    fn peer_label(&self) -> Option<String> {
        Some(self.label.clone())
    }
}
