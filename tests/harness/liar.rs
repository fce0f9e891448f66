//! A dishonest member: a node with valid credentials that exchanges hellos and hears beats, and then sends arbitrary
//! messages.
//!
//! The liar runs in a process of its own, which is the test program started again, because a process has one node
//! identity, and nodes soon ban that of a liar.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use communicator::Timing;
use communicator::control::{
    Endpoint, EndpointActor, EndpointMessage, Identity, Payload, Role, Routes, SessionEvent, Sessions, VerifiedPeer,
};
use communicator::transport::{Credentials, Plane, Security, Stream, dial};
use protocol::ids::NodeId;
use protocol::wire::control::{Beat, ControlMessage, NodeInfo, Reply, Request};
use ractor::{Actor, RpcReplyPort};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Limit for waiting, longer than any step of these tests takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Environment variables that tell the liar's process the addresses of the nodes, the path of the credentials and the
/// part to play.
const NODES: &str = "TAU_LIAR_NODES";
const CREDENTIALS: &str = "TAU_LIAR_CREDENTIALS";
const PART: &str = "TAU_LIAR_PART";

/// Runs one of the liar's parts in a process of its own, and returns the process's output.
pub(crate) fn run(test: &str, part: &str, nodes: &[&str], credentials: &Path) -> Output {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(NODES, nodes.join(","))
        .env(CREDENTIALS, credentials)
        .env(PART, part)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the liar failed in {part}: {errors}");
    output
}

/// Returns the part to play, or `None` if this process was not started as a liar.
pub(crate) fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// The newest beat that the liar has heard of each node.
type Heard = Arc<Mutex<BTreeMap<NodeId, Beat>>>;

/// Receiver that stores beats and answers no request.
struct Ears(Heard);

impl Routes for Ears {
    fn message(&self, from: NodeId, message: ControlMessage) {
        if let ControlMessage::Beat(beat) = message {
            self.0.lock().unwrap().insert(from, *beat);
        }
    }

    fn request(&self, _: Request, _: RpcReplyPort<Payload<Reply>>) {}
}

/// A cluster member that sends arbitrary, false messages.
pub(crate) struct Liar {
    pub(crate) id: NodeId,
    sessions: Sessions,
    events: UnboundedReceiver<SessionEvent>,
    heard: Heard,
    security: Security,
    pub(crate) nodes: Vec<SocketAddr>,
}

/// The liar's session with one of the nodes.
pub(crate) struct Ear {
    pub(crate) node: NodeId,
    pub(crate) endpoint: Endpoint,
    session: u64,
}

impl Liar {
    /// Creates a liar in a process that [`run`] has started.
    pub(crate) async fn new() -> Self {
        let credentials = std::env::var(CREDENTIALS).unwrap();
        let credentials = Credentials::read(Path::new(&credentials)).unwrap();
        let nodes = std::env::var(NODES).unwrap();
        let identity = Identity::draw(Role::Node).unwrap();
        let id = identity.peer().node().unwrap();
        let (sender, events) = unbounded_channel();
        let sessions = Sessions::start(identity, &Timing::DEFAULT, sender).await.unwrap();
        let heard = Heard::default();
        let endpoint = EndpointActor {
            routes: Ears(Arc::clone(&heard)),
            sessions: sessions.clone(),
        };
        Actor::spawn(None, endpoint, ()).await.unwrap();
        Self {
            id,
            sessions,
            events,
            heard,
            security: Security::Credentials(Arc::new(credentials)),
            nodes: nodes.split(',').map(|node| node.parse().unwrap()).collect(),
        }
    }

    /// Opens a connection that the node accepts as a member's.
    pub(crate) async fn dial(&self, node: SocketAddr, plane: Plane) -> Stream {
        dial(node, plane, &self.security, PATIENCE).await.unwrap()
    }

    /// Opens a session over any kind of connection, and waits until the node's beats arrive.
    pub(crate) async fn meet(&mut self, address: SocketAddr, stream: Stream) -> Ear {
        self.sessions.open(stream, address, None).await.unwrap();
        let ready = async {
            loop {
                // The end of an earlier session may be reported only now.
                match self.events.recv().await {
                    Some(SessionEvent::Ready {
                        session,
                        peer: VerifiedPeer::Node(node),
                    }) => return (session, node),
                    Some(_) => {}
                    None => panic!("there are no events"),
                }
            }
        };
        let ready = tokio::time::timeout(PATIENCE, ready).await;
        let (session, node) = ready.unwrap_or_else(|_| panic!("there is no session with {address}"));
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "{address} says nothing");
            let endpoint = self.sessions.endpoint(session);
            let beats = self.heard.lock().unwrap().contains_key(&node);
            match endpoint {
                Some(endpoint) if beats => {
                    return Ear {
                        node,
                        endpoint,
                        session,
                    };
                }
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Opens a session of the liar with every node.
    pub(crate) async fn meet_all(&mut self) -> Vec<Ear> {
        let mut ears = Vec::new();
        for address in self.nodes.clone() {
            let stream = self.dial(address, Plane::Control).await;
            ears.push(self.meet(address, stream).await);
        }
        ears
    }

    /// Waits until a node has closed the session.
    pub(crate) async fn sent_away(&mut self, ear: &Ear) {
        let ended = async {
            loop {
                match self.events.recv().await {
                    Some(SessionEvent::Closed { session, .. }) if session == ear.session => return,
                    Some(_) => {}
                    None => panic!("there are no events"),
                }
            }
        };
        let sent_away = tokio::time::timeout(PATIENCE, ended).await;
        assert!(sent_away.is_ok(), "{} goes on listening", ear.node);
    }

    /// Returns the newest beat that a node has sent.
    pub(crate) fn beat_of(&self, node: NodeId) -> Beat {
        self.heard.lock().unwrap()[&node].clone()
    }

    /// Returns the description of itself that an honest node would send in the liar's place.
    pub(crate) fn info(&self) -> NodeInfo {
        NodeInfo {
            id: self.id,
            name: protocol::wire::bounds::node_name("liar", self.id),
            address: self.nodes[0],
            version: env!("CARGO_PKG_VERSION").into(),
            device: "cpu".into(),
            workers: 1,
            since: 1,
        }
    }
}

impl Ear {
    /// Sends any message to the node, and ignores a failure.
    pub(crate) fn say(&self, message: ControlMessage) {
        let _ = self
            .endpoint
            .actor()
            .cast(EndpointMessage::Tell(self.endpoint.envelope(message)));
    }
}

/// A connection that is no longer read once its flag is set.
pub(crate) struct Deaf {
    stream: Stream,
    deaf: Arc<AtomicBool>,
}

impl Deaf {
    pub(crate) fn new(stream: Stream) -> (Self, Arc<AtomicBool>) {
        let deaf = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&deaf);
        (Self { stream, deaf }, held)
    }
}

impl tokio::io::AsyncRead for Deaf {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        if self.deaf.load(Ordering::Relaxed) {
            return std::task::Poll::Pending;
        }
        std::pin::Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl tokio::io::AsyncWrite for Deaf {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
