//! A node: the actors of one communicator, and the workers that they supervise.
//!
//! ```text
//!  NodeActor
//!   ├─ StatsActor        records of all nodes
//!   ├─ RunActor          this node's part in a run
//!   │   └─ ExchangeActor ─ LinkActor × peer
//!   ├─ WorkersActor      worker processes
//!   ├─ MembershipActor   members of the cluster, and which are alive
//!   └─ EndpointActor     the only actor that other processes can reach
//! ```

mod address;
mod checkpoints;
mod config;
mod data_inspection;
mod data_plane;
#[cfg(test)]
mod ear;
mod error;
mod exchange;
mod inquiry;
mod joining;
mod link;
mod mailbox;
mod membership;
pub(crate) mod roster;
mod routes;
mod run;
mod stats;
mod supervisor;
mod workers;

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protocol::wire::control::NodeInfo;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorRef};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::control::{Identity, NoKey, Role, Sessions, StartError};
use crate::timing::JoinTimes;
use crate::transport::{AcceptLimits, Acceptor, Security};
use crate::{log_context, usage};
use address::{advertised, name, socket_path};
pub use config::NodeConfig;
pub use data_inspection::DataReader;
pub use error::NodeError;
pub use inquiry::Inquiry;
use membership::{JoinState, MembershipMessage};
use run::RunMessage;
use supervisor::{NodeActor, NodeArguments, NodeMessage};
pub use workers::WorkerCommand;

/// A running node of a cluster, with its actors and workers.
pub struct Node {
    pub info: NodeInfo,
    /// Path of the socket to which workers can be attached by hand.
    pub socket: PathBuf,
    inquiry: Inquiry,
    sessions: Sessions,
    security: Security,
    times: JoinTimes,
    joined: watch::Receiver<JoinState>,
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
        let not_bound = |source| NodeError::Listen {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(not_bound)?;
        let address = advertised(listener.local_addr().map_err(not_bound)?, config.advertise)?;
        let identity = Identity::draw(Role::Node)?;
        let id = identity.peer().node().ok_or(NoKey)?;
        let socket = socket_path(&dir, id)?;
        std::fs::create_dir_all(&dir).map_err(|source| NodeError::Dir {
            dir: dir.clone(),
            source,
        })?;
        let info = NodeInfo {
            id,
            name: config.name.clone().unwrap_or_else(|| name(id)),
            address,
            version: config.version.as_str().into(),
            device: "none".into(),
            workers: 0,
            since: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_millis() as u64,
        };
        log_context::set_node(&info.name);
        let (events, mut session_events) = mpsc::unbounded_channel();
        let sessions = Sessions::start(identity, &config.timing, events).await?;
        let (joining, joined) = watch::channel(JoinState::Alone);
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
        let parts =
            ractor::call!(actor, NodeMessage::RouteTargets).map_err(|error| NodeError::Failed(error.to_string()))?;
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
            inquiry: Inquiry(parts),
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

    /// Returns a handle for requests to this node from within its process.
    pub fn inquiry(&self) -> Inquiry {
        self.inquiry.clone()
    }

    /// Waits until the node fails, and returns the reason. A node does not end by itself.
    pub async fn failure(&mut self) -> NodeError {
        let reason = match self.failed.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => "the node's supervisor has ended".into(),
        };
        NodeError::Failed(reason)
    }

    /// Leaves the run that this node is in: its workers send what they have learned, and the others take over its
    /// samples. Learning that has not been sent within the time limit is lost, and the others are told how much that
    /// is.
    pub async fn leave(&self, limit: Duration) {
        let run = &self.inquiry.0.run;
        if !matches!(
            run.call(RunMessage::Leave, Some(limit)).await,
            Ok(CallResult::Success(()))
        ) {
            let _ = run.call(RunMessage::LeaveUnfinished, Some(self.times.unfinished)).await;
        }
    }

    /// Says good-bye to the cluster, and ends all actors and workers.
    pub async fn stop(self) {
        self.actor.stop(None);
        let _ = self.ended.await;
        self.sessions.stop();
        self.accepting.iter().for_each(JoinHandle::abort);
    }
}
