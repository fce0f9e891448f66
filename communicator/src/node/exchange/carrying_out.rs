//! What the exchange's core decides, carried out.

use std::sync::Arc;
use std::time::Instant;

use protocol::ids::OriginId;
use protocol::wire::attach::{JumpOrder, SUMS_PER_PIECE, ToWorker};
use protocol::wire::prefix::Prefix;

use super::ExchangeState;
use crate::exchange::{Effect, Jump};
use crate::log_context::NEWS;
use crate::node::link::LinkMessage;
use crate::node::workers::WorkerHandle;
use crate::run::RunEvent;

impl ExchangeState {
    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, message } => {
                if let Some(peer) = self.peers.get(&to)
                    && let Some((_, outbox)) = &peer.outbox
                    // A link whose queue is full is too slow to live; a new one resumes from the peer's frontier.
                    && outbox.try_send(message).is_err()
                {
                    let _ = peer.link.cast(LinkMessage::Cut);
                }
            }
            Effect::Deliver { origin, bytes } => {
                self.last = Some(Instant::now());
                for (_, worker) in self.workers.values().filter(|(own, _)| *own != origin) {
                    worker.deliver(&bytes);
                }
            }
            Effect::Bundle(bytes) => {
                self.last = Some(Instant::now());
                self.workers
                    .values()
                    .for_each(|(_, worker)| worker.deliver_bundle(&bytes));
            }
            Effect::Pass { origin, prefix } => self.go_on_passing(origin, prefix),
            Effect::GoOn { origin, order } => {
                for (_, worker) in self.workers.values().filter(|(own, _)| *own == origin) {
                    worker.tell(ToWorker::GoOn(order));
                }
            }
            Effect::Ended(_) => self.tell_origins(),
            Effect::Stop => self.tell_run(RunEvent::StopSeen(self.run)),
            Effect::Spoilt => tracing::error!(
                event = "kept_batch_damaged",
                "a memory error has damaged a batch that this node kept for other nodes; they get a snapshot instead"
            ),
            Effect::Giving(to) => {
                let peer = self.name(to);
                tracing::info!(target: NEWS, event = "snapshot_started", peer, "this node sends a snapshot to a peer");
            }
            Effect::Jump(jump) => {
                if let Some(origin) = jump.origin {
                    tracing::info!(
                        event = "range_applied", %origin, batches = jump.batches,
                        "applied a merged range of batches"
                    );
                }
                self.last = Some(Instant::now());
                for (_, worker) in self.workers.values() {
                    hand_jump(worker, &jump);
                }
            }
            Effect::Mended(weight) => {
                tracing::error!(
                    event = "ledger_corrected",
                    weight,
                    "a memory error flipped one bit of this node's ledger; the bit is corrected"
                );
            }
            Effect::Damaged(error) => {
                tracing::error!(
                    event = "ledger_damaged", %error,
                    "a memory error has damaged this node's ledger; a peer is asked for its ledger"
                );
            }
            Effect::Healed => tracing::warn!(
                event = "ledger_replaced",
                "the damaged ledger was replaced with a peer's ledger"
            ),
            Effect::RestartWorkers => self.workers.values().for_each(|(_, worker)| worker.hang_up()),
            Effect::Reset(node) => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.outbox = None;
                    let _ = peer.link.cast(LinkMessage::Cut);
                    self.tell_linked(node, false);
                }
            }
            Effect::Quarantine { peer, reason } => {
                let name = self.name(peer);
                tracing::error!(
                    event = "peer_quarantined",
                    peer = name,
                    %reason,
                    "a peer is quarantined: this node accepts no further messages from the peer"
                );
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.outbox = None;
                    peer.link.stop(None);
                }
                self.tell_linked(peer, false);
                let (run, node) = (self.run, peer);
                self.tell_run(RunEvent::Lied { run, node });
            }
            Effect::WorkerFault(reason) => {
                tracing::error!(
                    event = "batch_rejected",
                    reason,
                    "a worker sent an invalid batch; this node disconnects all of its workers"
                );
                self.workers.values().for_each(|(_, worker)| worker.hang_up());
            }
            Effect::Diverged(reason) => self.tell_run(RunEvent::Diverged(self.run, reason)),
        }
    }
}

impl ExchangeState {
    /// A worker goes on with its pass.
    fn go_on_passing(&self, origin: OriginId, prefix: Option<Prefix>) {
        let contents = prefix.and_then(|prefix| prefix.encode().ok());
        let contents: Option<Arc<[u8]>> = contents.map(Into::into);
        for (_, worker) in self.workers.values().filter(|(own, _)| *own == origin) {
            match &contents {
                Some(contents) => worker.deliver_prefix(contents),
                None => worker.tell(ToWorker::GoOnPassing),
            }
        }
    }
}

/// Hands a worker what came other than as batches.
fn hand_jump(worker: &WorkerHandle, jump: &Jump) {
    for piece in jump.sums.entries().chunks(SUMS_PER_PIECE) {
        worker.tell(ToWorker::Sums(piece.to_vec()));
    }
    worker.tell(ToWorker::Jump(Box::new(JumpOrder {
        origin: jump.origin,
        batches: jump.batches,
        samples: jump.samples,
        cursors: jump.cursors.clone(),
    })));
}
