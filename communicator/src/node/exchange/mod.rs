//! The exchange's actor: carries out the effects of the core of a run's exchange. It holds the links and the handles of
//! workers, tells the core what comes from them, and decides nothing.

mod carrying_out;
mod messages;
mod peer;
mod reporting;
mod writing;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::ids::{NodeId, OriginId, RunId};
use ractor::{Actor, ActorProcessingErr, ActorRef, DerivedActorRef, SupervisionEvent};

use super::link::{LinkMessage, LinkNotice};
use super::workers::{SeatNotice, WorkerHandle};
use crate::entropy;
use crate::run::{ExchangeOrder, WorkerKey};
use crate::run_exchange::{RunExchange, RunExchangeEvent};
use crate::timing::LinkTimes;
use crate::transport::{Security, Stream};
pub(crate) use messages::{ExchangeArguments, ExchangeMessage, ExchangeNotice, Report};
use peer::PeerConnection;

pub(crate) struct ExchangeActor;

pub(crate) struct ExchangeState {
    core: RunExchange,
    started: Instant,
    /// Total time that the exchange's core took to handle events.
    adding: Duration,
    me: NodeId,
    version: String,
    run: RunId,
    security: Security,
    link_times: LinkTimes,
    myself: ActorRef<ExchangeMessage>,
    parent: DerivedActorRef<ExchangeNotice>,
    peers: BTreeMap<NodeId, PeerConnection>,
    /// Handles of this node's workers that the run's actor has handed over to the exchange.
    workers: BTreeMap<WorkerKey, WorkerHandle>,
}

impl Actor for ExchangeActor {
    type Msg = ExchangeMessage;
    type State = ExchangeState;
    type Arguments = ExchangeArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<ExchangeMessage>,
        arguments: ExchangeArguments,
    ) -> Result<ExchangeState, ActorProcessingErr> {
        let ExchangeArguments {
            core,
            version,
            security,
            timing,
            parent,
        } = arguments;
        let (me, run) = (core.me, core.run);
        let (core, effects) = RunExchange::start(core, Duration::ZERO);
        let mut state = ExchangeState {
            core,
            started: Instant::now(),
            adding: Duration::ZERO,
            me,
            version,
            run,
            security,
            link_times: timing.link,
            myself: myself.clone(),
            parent,
            peers: BTreeMap::new(),
            workers: BTreeMap::new(),
        };
        state.carry_out_all(effects).await?;
        myself.send_interval(timing.clocks.exchange_tick, || ExchangeMessage::Tick);
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<ExchangeMessage>,
        message: ExchangeMessage,
        state: &mut ExchangeState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ExchangeMessage::Accepted { from, stream } => state.accepted(from, stream),
            ExchangeMessage::Link(notice) => state.hear_link(notice).await?,
            ExchangeMessage::FromSeat(SeatNotice { event, permit: _permit }) => state.event(event).await?,
            ExchangeMessage::Order { order, worker } => state.order(order, worker).await?,
            ExchangeMessage::Checkpointed => state.event(RunExchangeEvent::CheckpointWritten).await?,
            ExchangeMessage::Tick => state.tick().await?,
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        myself: ActorRef<ExchangeMessage>,
        _state: &mut ExchangeState,
    ) -> Result<(), ActorProcessingErr> {
        // Links that are left to themselves would be killed, and could not close their connections.
        myself.stop_children_and_wait(None, None).await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<ExchangeMessage>,
        event: SupervisionEvent,
        _state: &mut ExchangeState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            // The link to a quarantined peer was ended on purpose; a link that failed is a bug in Tau.
            SupervisionEvent::ActorFailed(_, error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl ExchangeState {
    /// Passes an event to the exchange's core, and carries out the effects that the core decides on.
    async fn event(&mut self, event: RunExchangeEvent) -> Result<(), ActorProcessingErr> {
        let now = self.now();
        let effects = self.core.handle(event, now);
        self.adding += self.now().saturating_sub(now);
        self.carry_out_all(effects).await
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Passes an order of the run to the exchange's core. A worker that the exchange does not have yet comes with the
    /// order; if that worker is gone meanwhile, there is nothing to do.
    async fn order(&mut self, order: ExchangeOrder, worker: Option<WorkerHandle>) -> Result<(), ActorProcessingErr> {
        if order.new_worker().is_some() && worker.is_none() {
            return Ok(());
        }
        self.workers.extend(worker.map(|worker| (worker.key, worker)));
        let gone = match order {
            ExchangeOrder::Unseat(worker) => Some(worker),
            _ => None,
        };
        let origin = OriginId(entropy::number());
        self.event(RunExchangeEvent::Order { order, origin }).await?;
        if let Some(worker) = gone {
            self.workers.remove(&worker);
        }
        Ok(())
    }

    async fn hear_link(&mut self, notice: LinkNotice) -> Result<(), ActorProcessingErr> {
        match notice {
            LinkNotice::Up {
                peer: node,
                generation,
                outbox,
            } => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.outbox = Some((generation, outbox));
                    self.event(RunExchangeEvent::LinkUp(node)).await?;
                }
            }
            LinkNotice::Down { peer: node, generation } => {
                if let Some(peer) = self.peers.get_mut(&node)
                    && peer.is_linked_by(generation)
                {
                    peer.outbox = None;
                    self.event(RunExchangeEvent::LinkDown(node)).await?;
                }
            }
            LinkNotice::Received {
                peer: from,
                generation,
                message,
                permit: _permit,
            } => {
                if self.peers.get(&from).is_some_and(|peer| peer.is_linked_by(generation)) {
                    self.event(RunExchangeEvent::Received { from, message }).await?;
                }
            }
        }
        Ok(())
    }

    /// Hands a connection that a peer has dialled to the actor of the link with that peer.
    fn accepted(&self, from: NodeId, stream: Stream) {
        if let Some(peer) = self.peers.get(&from) {
            let _ = peer.link.cast(LinkMessage::Up { stream, dialled: false });
        }
    }

    async fn tick(&mut self) -> Result<(), ActorProcessingErr> {
        let peers = self.peers.iter_mut();
        let moved: Vec<NodeId> = peers
            .filter_map(|(&node, peer)| peer.take_progress().then_some(node))
            .collect();
        for node in moved {
            self.event(RunExchangeEvent::Sent(node)).await?;
        }
        self.event(RunExchangeEvent::Tick).await
    }
}
