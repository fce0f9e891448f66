//! Carries out the effects of the exchange's core.

use std::sync::Arc;

use protocol::ids::NodeId;
use protocol::wire::link::Message;
use protocol::wire::run_plan::Participant;
use ractor::{Actor, ActorProcessingErr};

use super::{ExchangeNotice, ExchangeState, PeerConnection};
use crate::log_context::NEWS;
use crate::node::link::{LinkActor, LinkArguments, LinkMessage, Traffic};
use crate::node::workers::WorkerHandle;
use crate::run::{RunEvent, WorkerKey};
use crate::run_exchange::{ExchangeNews, RunExchangeEffect};

impl ExchangeState {
    pub(super) async fn carry_out_all(&mut self, effects: Vec<RunExchangeEffect>) -> Result<(), ActorProcessingErr> {
        for effect in effects {
            self.carry_out(effect).await?;
        }
        Ok(())
    }

    async fn carry_out(&mut self, effect: RunExchangeEffect) -> Result<(), ActorProcessingErr> {
        match effect {
            RunExchangeEffect::Connect(participant) => self.connect(participant).await?,
            RunExchangeEffect::Reconnect(node) => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.outbox = None;
                    let _ = peer.link.cast(LinkMessage::Cut);
                }
            }
            RunExchangeEffect::Disconnect(node) => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.outbox = None;
                    peer.link.stop(None);
                }
            }
            RunExchangeEffect::Absent { peer, absent } => {
                if let Some(peer) = self.peers.get(&peer) {
                    let _ = peer.link.cast(LinkMessage::Absent(absent));
                }
            }
            RunExchangeEffect::Send { to, message } => self.send(to, message),
            RunExchangeEffect::Hear { worker, is_heard } => {
                let route = is_heard.then(|| self.myself.get_derived());
                self.with_worker(worker, |worker| worker.route_batches(route));
            }
            RunExchangeEffect::Tell { worker, message } => self.with_worker(worker, |worker| worker.tell(message)),
            RunExchangeEffect::Deliver { worker, kind, contents } => {
                self.with_worker(worker, |worker| worker.deliver(kind, contents));
            }
            RunExchangeEffect::HangUp(worker) => self.with_worker(worker, WorkerHandle::hang_up),
            RunExchangeEffect::Run(event) => self.tell_run(event),
            RunExchangeEffect::Settle(settlement) => self.settle(settlement),
            RunExchangeEffect::Report => self.tell_report(),
            RunExchangeEffect::Write { occasion, path, header } => self.write(occasion, path, *header),
            RunExchangeEffect::Notice(news) => self.log(news),
        }
        Ok(())
    }

    /// Starts the actor that keeps a link to another participant of the run.
    async fn connect(&mut self, participant: Participant) -> Result<(), ActorProcessingErr> {
        let traffic = Arc::new(Traffic::default());
        let link = LinkArguments {
            me: self.me,
            version: self.version.clone(),
            run: self.run,
            peer: participant.clone(),
            security: self.security.clone(),
            times: self.link_times,
            traffic: Arc::clone(&traffic),
            parent: self.myself.get_derived(),
        };
        let (link, _) = Actor::spawn_linked(None, LinkActor, link, self.myself.get_cell()).await?;
        self.peers
            .insert(participant.node, PeerConnection::new(participant.name, link, traffic));
        Ok(())
    }

    fn send(&self, to: NodeId, message: Message) {
        if let Some(peer) = self.peers.get(&to)
            && let Some((_, outbox)) = &peer.outbox
            // A link whose queue is full is too slow to live; a new one resumes from the peer's frontier.
            && outbox.try_send(message).is_err()
        {
            let _ = peer.link.cast(LinkMessage::Cut);
        }
    }

    fn with_worker(&self, worker: WorkerKey, act: impl FnOnce(&WorkerHandle)) {
        if let Some(worker) = self.workers.get(&worker) {
            act(worker);
        }
    }

    pub(super) fn tell_run(&self, event: RunEvent) {
        let _ = self.parent.send_message(ExchangeNotice::Happened(Box::new(event)));
    }

    fn name(&self, node: NodeId) -> String {
        self.peers
            .get(&node)
            .map_or_else(|| node.to_string(), |peer| peer.name.clone())
    }

    fn log(&self, news: ExchangeNews) {
        match news {
            ExchangeNews::Joined(peer) => {
                tracing::info!(event = "participant_joined", peer, "a node joins the run");
            }
            ExchangeNews::Giving(to) => {
                let peer = self.name(to);
                tracing::info!(target: NEWS, event = "snapshot_started", peer, "this node sends a snapshot to a peer");
            }
            ExchangeNews::RangeApplied { origin, batches } => {
                tracing::info!(event = "range_applied", %origin, batches, "applied a merged range of batches");
            }
            ExchangeNews::Spoilt => tracing::error!(
                event = "kept_batch_damaged",
                "a memory error has damaged a batch that this node kept for other nodes; they get a snapshot instead"
            ),
            ExchangeNews::Mended(weight) => tracing::error!(
                event = "ledger_corrected",
                weight,
                "a memory error flipped one bit of this node's ledger; the bit is corrected"
            ),
            ExchangeNews::Damaged(error) => tracing::error!(
                event = "ledger_damaged", %error,
                "a memory error has damaged this node's ledger; a peer is asked for its ledger"
            ),
            ExchangeNews::Healed => tracing::warn!(
                event = "ledger_replaced",
                "the damaged ledger was replaced with a peer's ledger"
            ),
            ExchangeNews::CheckpointSkipped => tracing::error!(
                event = "checkpoint_skipped",
                "no checkpoint is written: this node's ledger is damaged and not replaced yet"
            ),
            ExchangeNews::StateDropped(path) => tracing::warn!(
                event = "worker_state_dropped",
                path = %path.display(),
                "a worker's saved residual and optimiser state are dropped: they belong to other batches than the run resumes from"
            ),
            ExchangeNews::Quarantined { peer, reason } => tracing::error!(
                event = "peer_quarantined",
                peer = self.name(peer),
                %reason,
                "a peer is quarantined: this node accepts no further messages from the peer"
            ),
            ExchangeNews::BatchRejected(reason) => tracing::error!(
                event = "batch_rejected",
                reason,
                "a worker sent an invalid batch; this node disconnects all of its workers"
            ),
            ExchangeNews::FlowRejected => tracing::error!(
                event = "stage_message_rejected",
                "a worker addressed a message to a stage that its pipeline does not have; the worker is disconnected"
            ),
        }
    }
}
