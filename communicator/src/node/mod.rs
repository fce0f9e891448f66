//! A node: the actors of one communicator, and the workers that they supervise.
//!
//! ```text
//!  NodeActor
//!   ├─ StatsActor        records of all nodes
//!   ├─ RunActor          this node's part in a run
//!   │   └─ ExchangeActor ─ LinkActor × peer
//!   ├─ WorkersActor      worker processes
//!   ├─ MembershipActor   who is there
//!   └─ GateActor         what others can reach
//! ```

mod checkpoints;
mod data_plane;
mod exchange;
mod link;
mod mailbox;
mod membership;
pub(crate) mod roster;
mod routes;
mod run;
mod stats;
mod worker_socket;
mod workers;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protocol::bounds::node_name;
use protocol::control::NodeInfo;
use protocol::ids::NodeId;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use ractor_cluster::RactorMessage;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::control::{GateActor, Identity, NoKey, Role, Sessions, StartError};
use crate::timing::{JoinTimes, Timing, TimingError};
use crate::transport::{AcceptLimits, Acceptor, DialError, NotLoopback, Plane, Security, dial};
use crate::{usage, whereabouts};
use membership::{Joined, MembershipActor, MembershipArguments, MembershipMessage};
use run::{RunActor, RunArguments, RunMessage};
use stats::{StatsActor, StatsArguments, StatsMessage};
pub use workers::WorkerCommand;
use workers::{WorkersActor, WorkersArguments};

/// The longest path that a socket can have on Linux.
const SOCKET_PATH_MAX: usize = 107;

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Where it listens; port 0 takes any.
    pub listen: SocketAddr,
    /// Where others reach it, if that is another address.
    pub advertise: Option<SocketAddr>,
    /// How it knows its own.
    pub security: Security,
    /// Where it keeps its socket and saves models.
    pub dir: PathBuf,
    /// How workers are started.
    pub workers: WorkerCommand,
    /// The release that it says it is.
    pub version: String,
    /// How long it waits for what.
    pub timing: Timing,
}

/// Why a node did not start, or had to stop.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The times that it was given contradict each other.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// Plain text was asked for over a network.
    #[error(transparent)]
    NotLoopback(#[from] NotLoopback),
    /// The address cannot be listened on.
    #[error("{address} cannot be listened on: give another address or port with --listen")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Nobody knows under which address others reach this node.
    #[error(
        "{0} listens on all of this machine's addresses, and none of them leads anywhere: name one with --advertise"
    )]
    NoAddress(SocketAddr),
    /// The folder cannot be used.
    #[error("{dir} cannot be used as the node's folder: give another one with --dir")]
    Dir {
        /// Which.
        dir: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The socket for workers would have too long a path.
    #[error(
        "{path} is too long for a socket's path, which may take {SOCKET_PATH_MAX} bytes: choose a shorter --dir, or \
         TMPDIR for 'tau train'"
    )]
    SocketPath {
        /// Which.
        path: PathBuf,
    },
    /// The control plane did not start.
    #[error(transparent)]
    Sessions(#[from] StartError),
    /// The node has no name.
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// An actor did not start.
    #[error("the node could not be started: {0}")]
    Actor(#[from] ractor::SpawnErr),
    /// Seeds were tried in vain.
    #[error("no seed was reached within {limit:?}; the last answer was: {answer}")]
    NoSeed {
        /// For how long they were tried.
        limit: Duration,
        /// What was heard last.
        answer: String,
    },
    /// A seed is no member of the same cluster.
    #[error(transparent)]
    Refused(DialError),
    /// The cluster does not want this node.
    #[error("{0}")]
    Unwelcome(String),
    /// A part of the node failed.
    #[error("a part of the node failed: {0}; this is a fault in Tau, please report it")]
    Failed(String),
}

/// A running node.
pub struct Node {
    /// Who it is.
    pub info: NodeInfo,
    /// Where workers can be attached by hand.
    pub socket: PathBuf,
    sessions: Sessions,
    security: Security,
    times: JoinTimes,
    joined: watch::Receiver<Joined>,
    actor: ActorRef<NodeMessage>,
    ended: JoinHandle<()>,
    accepting: [JoinHandle<()>; 3],
    failed: watch::Receiver<Option<String>>,
}

impl Node {
    /// Starts a node. It is a cluster of its own until it joins another.
    pub async fn start(config: NodeConfig) -> Result<Self, NodeError> {
        config.timing.validate()?;
        config.security.check(config.listen)?;
        let dir = std::path::absolute(&config.dir).unwrap_or_else(|_| config.dir.clone());
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|source| NodeError::Listen {
                address: config.listen,
                source,
            })?;
        let address = advertised(&listener, config.advertise)?;
        let identity = Identity::draw(Role::Node)?;
        let id = identity.peer().node().ok_or(NoKey)?;
        let socket = socket_path(&dir, id)?;
        std::fs::create_dir_all(&dir).map_err(|source| NodeError::Dir {
            dir: dir.clone(),
            source,
        })?;
        let info = NodeInfo {
            id,
            name: name(id),
            address,
            version: config.version.clone(),
            device: "none".into(),
            workers: 0,
            since: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_millis() as u64,
        };
        whereabouts::set_node(&info.name);
        let (events, mut session_events) = mpsc::unbounded_channel();
        let sessions = Sessions::start(identity, &config.timing, events).await?;
        let (joining, joined) = watch::channel(Joined::Alone);
        let (failing, failed) = watch::channel(None);
        let (actor, ended) = Actor::spawn(
            None,
            NodeActor,
            NodeArguments {
                info: info.clone(),
                dir,
                socket: socket.clone(),
                config: config.clone(),
                sessions: sessions.clone(),
                joining,
                failing,
            },
        )
        .await?;
        let parts = ractor::call!(actor, NodeMessage::Parts).map_err(|error| NodeError::Failed(error.to_string()))?;
        let membership = parts.membership.clone();
        let forwarding = tokio::spawn(async move {
            while let Some(event) = session_events.recv().await {
                let _ = membership.cast(MembershipMessage::Session(event));
            }
        });
        let limits = AcceptLimits {
            handshake: config.timing.calls.handshake,
            ..usage::descriptors_max().map_or_else(AcceptLimits::default, AcceptLimits::within)
        };
        let acceptor = Acceptor::new(listener, &config.security, limits).map_err(StartError::from)?;
        let (accepted, connections) = mpsc::channel(64);
        let accepting = tokio::spawn(acceptor.run(accepted));
        let routing = tokio::spawn(data_plane::route(
            connections,
            sessions.clone(),
            parts.run.clone(),
            info.clone(),
            config.timing.calls,
        ));
        Ok(Self {
            info,
            socket,
            sessions,
            security: config.security,
            times: config.timing.join,
            joined,
            actor,
            ended,
            accepting: [accepting, routing, forwarding],
            failed,
        })
    }

    /// Joins the cluster that one of these addresses belongs to; tells each time that nobody answered. One that belongs to
    /// another cluster does not keep this node from the next; if all do, there is nothing to wait for.
    pub async fn join(&mut self, seeds: &[SocketAddr], mut waiting: impl FnMut(&str)) -> Result<(), NodeError> {
        let (started, times) = (tokio::time::Instant::now(), self.times);
        let mut last = String::from("there was none");
        let others = || seeds.iter().filter(|&&seed| seed != self.info.address);
        while started.elapsed() < times.limit {
            let mut refusals = 0;
            for &seed in others() {
                match dial(seed, Plane::Control, &self.security, times.dial).await {
                    Ok(stream) => {
                        if let Err(error) = self.sessions.open(stream, seed, None).await {
                            last = format!("{seed} let this node in, but {error}");
                            waiting(&last);
                            continue;
                        }
                    }
                    Err(error) => {
                        refusals += usize::from(matches!(error, DialError::Refused { .. } | DialError::NotLoopback(_)));
                        if refusals == others().count() {
                            return Err(NodeError::Refused(error));
                        }
                        last = error.to_string();
                        waiting(&last);
                        continue;
                    }
                }
                let answered = self.joined.wait_for(|joined| *joined != Joined::Alone);
                match tokio::time::timeout(times.dial, answered).await {
                    Ok(Ok(joined)) => {
                        return match &*joined {
                            Joined::Refused(reason) => Err(NodeError::Unwelcome(reason.clone())),
                            _ => Ok(()),
                        };
                    }
                    Ok(Err(_)) => return Err(NodeError::Failed("the membership is gone".into())),
                    Err(_) => last = format!("{seed} let this node in but says nothing"),
                }
            }
            tokio::time::sleep(times.pause).await;
        }
        Err(NodeError::NoSeed {
            limit: times.limit,
            answer: last,
        })
    }

    /// Waits until the node fails. It does not end by itself.
    pub async fn failure(&mut self) -> NodeError {
        let reason = match self.failed.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "its supervisor is gone".into(),
        };
        NodeError::Failed(reason)
    }

    /// Says good-bye and ends everything, workers included.
    pub async fn stop(self) {
        self.actor.stop(None);
        let _ = self.ended.await;
        self.sessions.stop();
        self.accepting.iter().for_each(JoinHandle::abort);
    }
}

/// Where workers attach.
fn socket_path(dir: &Path, id: NodeId) -> Result<PathBuf, NodeError> {
    let path = dir.join(format!("{}.sock", name(id)));
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(NodeError::SocketPath { path });
    }
    Ok(path)
}

/// The address that others are told.
fn advertised(listener: &TcpListener, advertise: Option<SocketAddr>) -> Result<SocketAddr, NodeError> {
    let bound = listener.local_addr().map_err(|source| NodeError::Listen {
        address: SocketAddr::from(([0, 0, 0, 0], 0)),
        source,
    })?;
    match advertise {
        Some(address) if address.port() == 0 => Ok(SocketAddr::new(address.ip(), bound.port())),
        Some(address) => Ok(address),
        None if bound.ip().is_unspecified() => {
            let ip = outward_ip().ok_or(NodeError::NoAddress(bound))?;
            Ok(SocketAddr::new(ip, bound.port()))
        }
        None => Ok(bound),
    }
}

/// This machine's own address on the way out. Nothing is sent: the system only looks the way up.
fn outward_ip() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

/// A node's name for people.
fn name(id: NodeId) -> String {
    node_name(
        &std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default(),
        id,
    )
}

/// What the supervisor is told.
#[derive(RactorMessage)]
enum NodeMessage {
    Parts(RpcReplyPort<Parts>),
}

#[derive(Clone)]
struct Parts {
    stats: ActorRef<StatsMessage>,
    run: ActorRef<RunMessage>,
    membership: ActorRef<MembershipMessage>,
}

struct NodeArguments {
    info: NodeInfo,
    dir: PathBuf,
    socket: PathBuf,
    config: NodeConfig,
    sessions: Sessions,
    joining: watch::Sender<Joined>,
    failing: watch::Sender<Option<String>>,
}

struct NodeState {
    parts: Parts,
    workers: ActorRef<workers::WorkersMessage>,
    goodbye: Duration,
    failing: watch::Sender<Option<String>>,
}

/// The supervisor. None of its actors is expected to fail: where one does, the node says so and stops.
struct NodeActor;

impl Actor for NodeActor {
    type Msg = NodeMessage;
    type State = NodeState;
    type Arguments = NodeArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<NodeMessage>,
        arguments: NodeArguments,
    ) -> Result<NodeState, ActorProcessingErr> {
        let NodeArguments {
            info,
            dir,
            socket,
            config,
            sessions,
            joining,
            failing,
        } = arguments;
        let (me, timing) = (myself.get_cell(), config.timing);
        let stats = StatsArguments {
            record: timing.clocks.record,
            news: timing.calls.news,
        };
        let (stats, _) = Actor::spawn_linked(None, StatsActor, stats, me.clone()).await?;
        let run = RunArguments {
            me: info.clone(),
            dir,
            security: config.security.clone(),
            workers: config.workers.count,
            timing,
            stats: stats.clone(),
        };
        let (run, _) = Actor::spawn_linked(None, RunActor, run, me.clone()).await?;
        let membership = MembershipArguments {
            me: info.clone(),
            sessions: sessions.clone(),
            security: config.security,
            tick: timing.clocks.membership_tick,
            times: timing.membership,
            parent: run.get_derived(),
            joining,
        };
        let (membership, _) = Actor::spawn_linked(None, MembershipActor, membership, me.clone()).await?;
        run.cast(RunMessage::Membership(membership.clone()))?;
        let workers = WorkersArguments {
            socket,
            command: config.workers,
            version: config.version,
            socket_look: timing.clocks.socket_look,
            times: timing.workers,
            parent: run.get_derived(),
        };
        let (workers, _) = Actor::spawn_linked(None, WorkersActor, workers, me.clone()).await?;
        let parts = Parts { stats, run, membership };
        let gate = GateActor {
            routes: parts.clone(),
            sessions,
        };
        Actor::spawn_linked(None, gate, (), me).await?;
        Ok(NodeState {
            parts,
            workers,
            goodbye: timing.join.goodbye,
            failing,
        })
    }

    async fn handle(
        &self,
        _myself: ActorRef<NodeMessage>,
        message: NodeMessage,
        state: &mut NodeState,
    ) -> Result<(), ActorProcessingErr> {
        let NodeMessage::Parts(reply) = message;
        let _ = reply.send(state.parts.clone());
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<NodeMessage>,
        event: SupervisionEvent,
        state: &mut NodeState,
    ) -> Result<(), ActorProcessingErr> {
        let reason = match event {
            SupervisionEvent::ActorFailed(_, error) => error.to_string(),
            SupervisionEvent::ActorTerminated(..) => "an actor ended by itself".into(),
            _ => return Ok(()),
        };
        state.failing.send_replace(Some(reason));
        Ok(())
    }

    async fn post_stop(&self, myself: ActorRef<NodeMessage>, state: &mut NodeState) -> Result<(), ActorProcessingErr> {
        // Whoever does not hear it in time finds out.
        let _ = state
            .parts
            .membership
            .call(MembershipMessage::Leave, Some(state.goodbye))
            .await;
        let _ = state.workers.stop_and_wait(None, None).await;
        myself.stop_children_and_wait(None, None).await;
        Ok(())
    }
}
