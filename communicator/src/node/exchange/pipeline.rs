//! What the core of pipelines decides, carried out.

use protocol::wire::attach::ToWorker;
use protocol::wire::link::Message;

use super::ExchangeState;
use crate::node::link::LinkMessage;
use crate::pipeline::{PipelineEffect, PipelineEvent};

impl ExchangeState {
    pub(super) fn pipeline_event(&mut self, event: PipelineEvent) {
        let mut effects = Vec::new();
        self.pipeline.handle(event, &self.plan, &mut effects);
        for effect in effects {
            self.carry_out_of_pipeline(effect);
        }
    }

    /// Tells workers which origins emit no more batches, when that changes.
    pub(super) fn tell_origins(&mut self) {
        let mut effects = Vec::new();
        self.pipeline.compare_origins(self.core.origins(), &mut effects);
        for effect in effects {
            self.carry_out_of_pipeline(effect);
        }
    }

    fn carry_out_of_pipeline(&self, effect: PipelineEffect) {
        match effect {
            PipelineEffect::Send { to, bytes } => {
                if let Some(peer) = self.peers.get(&to)
                    && let Some((_, outbox)) = &peer.outbox
                    // A link whose queue is full is too slow to live; both sides hear of it when it is cut.
                    && outbox.try_send(Message::Flow(bytes)).is_err()
                {
                    let _ = peer.link.cast(LinkMessage::Cut);
                }
            }
            PipelineEffect::Deliver(bytes) => self
                .workers
                .values()
                .for_each(|(_, worker)| worker.deliver_flow(&bytes)),
            PipelineEffect::Broken => self.tell(&ToWorker::PipelineBroken),
            PipelineEffect::Slot { slot, alive } => self.tell(&ToWorker::Slot { slot, alive }),
            PipelineEffect::Origin { origin, alive } => self.tell(&ToWorker::Origin { origin, alive }),
            PipelineEffect::HangUp(key) => {
                tracing::error!(
                    event = "stage_message_rejected",
                    "a worker addressed a message to a stage that its pipeline does not have; the worker is disconnected"
                );
                if let Some((_, worker)) = self.workers.get(&key) {
                    worker.hang_up();
                }
            }
        }
    }
}
