//! A member that lies: it holds the credentials, exchanges hellos and hears beats as a node does, and then says what it
//! likes.
//!
//! It is a process of its own, because a process has one name, and a liar's is soon known: the test program, started again.

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

/// Longer than anything takes that happens at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// What a liar is told of where it is and what it is to do.
const NODES: &str = "TAU_LIAR_NODES";
const CREDENTIALS: &str = "TAU_LIAR_CREDENTIALS";
const PART: &str = "TAU_LIAR_PART";

/// Runs a part of a liar's in a process of its own, and waits for its end.
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

/// In a liar's process: what it is to do; none where it was started by hand.
pub(crate) fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// What was heard of each node last.
type Heard = Arc<Mutex<BTreeMap<NodeId, Beat>>>;

/// Hears beats, and answers nobody.
struct Ears(Heard);

impl Routes for Ears {
    fn message(&self, from: NodeId, message: ControlMessage) {
        if let ControlMessage::Beat(beat) = message {
            self.0.lock().unwrap().insert(from, *beat);
        }
    }

    fn request(&self, _: Request, _: RpcReplyPort<Payload<Reply>>) {}
}

/// A member with bad intentions.
pub(crate) struct Liar {
    pub(crate) id: NodeId,
    sessions: Sessions,
    events: UnboundedReceiver<SessionEvent>,
    heard: Heard,
    security: Security,
    pub(crate) nodes: Vec<SocketAddr>,
}

/// A way to one of the nodes.
pub(crate) struct Ear {
    pub(crate) node: NodeId,
    pub(crate) endpoint: Endpoint,
    session: u64,
}

impl Liar {
    /// A new one, in a process that was started to be one.
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

    /// A connection whose other end knows it for a member's.
    pub(crate) async fn dial(&self, node: SocketAddr, plane: Plane) -> Stream {
        dial(node, plane, &self.security, PATIENCE).await.unwrap()
    }

    /// Makes a session, over a connection that may be anything, and waits until the node's beats come.
    pub(crate) async fn meet(&mut self, address: SocketAddr, stream: Stream) -> Ear {
        self.sessions.open(stream, address, None).await.unwrap();
        let ready = async {
            loop {
                // An earlier session may be told as gone only now.
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

    /// Meets all nodes.
    pub(crate) async fn meet_all(&mut self) -> Vec<Ear> {
        let mut ears = Vec::new();
        for address in self.nodes.clone() {
            let stream = self.dial(address, Plane::Control).await;
            ears.push(self.meet(address, stream).await);
        }
        ears
    }

    /// Waits until a node has ended the session.
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

    /// What a node has said last.
    pub(crate) fn beat_of(&self, node: NodeId) -> Beat {
        self.heard.lock().unwrap()[&node].clone()
    }

    /// What an honest node would say of itself in this one's place.
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
    /// Says anything at all, whether it can be said or not.
    pub(crate) fn say(&self, message: ControlMessage) {
        let _ = self
            .endpoint
            .actor()
            .cast(EndpointMessage::Tell(self.endpoint.envelope(message)));
    }
}

/// A connection that stops being read when that is said.
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
