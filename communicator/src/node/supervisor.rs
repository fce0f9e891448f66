//! The supervisor: starts the actors of a node, and ends them in good order.

use std::path::PathBuf;
use std::time::Duration;

use protocol::wire::control::NodeInfo;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use ractor_cluster::RactorMessage;
use tokio::sync::watch;

use super::config::NodeConfig;
use super::data_inspection::DataInspector;
use super::membership::{JoinState, MembershipActor, MembershipArguments, MembershipMessage};
use super::routes::RouteTargets;
use super::run::{RunActor, RunArguments, RunMessage};
use super::stats::{StatsActor, StatsArguments};
use super::workers::{WorkersActor, WorkersArguments, WorkersMessage};
use crate::control::{EndpointActor, Sessions};

/// Message to the supervisor of a node's actors.
#[derive(RactorMessage)]
pub(super) enum NodeMessage {
    /// Reply with the actors that take the node's messages and requests.
    RouteTargets(RpcReplyPort<RouteTargets>),
}

/// Arguments with which the supervisor of a node's actors is started.
pub(super) struct NodeArguments {
    pub(super) info: NodeInfo,
    pub(super) dir: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) config: NodeConfig,
    pub(super) sessions: Sessions,
    pub(super) joining: watch::Sender<JoinState>,
    pub(super) failing: watch::Sender<Option<String>>,
}

pub(super) struct NodeState {
    parts: RouteTargets,
    workers: ActorRef<WorkersMessage>,
    goodbye: Duration,
    failing: watch::Sender<Option<String>>,
}

/// The supervisor of a node's actors. None of them is expected to fail: if one does, the node reports it and stops.
pub(super) struct NodeActor;

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
            keeps_runs: config.keeps_runs,
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
        let parts = RouteTargets {
            stats,
            run,
            membership,
            inspector: DataInspector::new(config.data, timing.calls.news),
        };
        let endpoint = EndpointActor {
            routes: parts.clone(),
            sessions,
        };
        Actor::spawn_linked(None, endpoint, (), me).await?;
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
        let NodeMessage::RouteTargets(reply) = message;
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
            SupervisionEvent::ActorTerminated(..) => "one of the node's actors ended unexpectedly".into(),
            _ => return Ok(()),
        };
        state.failing.send_replace(Some(reason));
        Ok(())
    }

    async fn post_stop(&self, myself: ActorRef<NodeMessage>, state: &mut NodeState) -> Result<(), ActorProcessingErr> {
        // Nodes that do not hear the good-bye in time find out by themselves.
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
