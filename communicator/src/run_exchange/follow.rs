//! Carries out the effects of the exchange and of the pipeline: turns each into effects for the actor and events for
//! the run.

use std::sync::Arc;

use protocol::ids::OriginId;
use protocol::wire::attach::{SUMS_PER_PIECE, ToWorker};
use protocol::wire::frame::Kind;
use protocol::wire::link::Message;
use protocol::wire::prefix::Prefix;

use super::{ExchangeNews, RunExchange, RunExchangeEffect};
use crate::exchange::{Effect, Event, Jump};
use crate::pipeline::{PipelineEffect, PipelineEvent};
use crate::run::{RunEvent, WorkerKey};

impl RunExchange {
    pub(super) fn exchange_event(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.exchange.handle(event, &mut effects);
        for effect in effects {
            self.follow(effect);
        }
    }

    fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, message } => self.effects.push(RunExchangeEffect::Send { to, message }),
            Effect::Deliver { origin, bytes } => {
                self.last = Some(self.now);
                for worker in self.workers_but(Some(origin)) {
                    self.deliver(worker, Kind::Batch, &bytes);
                }
            }
            Effect::Bundle(bytes) => {
                self.last = Some(self.now);
                for worker in self.workers_but(None) {
                    self.deliver(worker, Kind::Bundle, &bytes);
                }
            }
            Effect::Pass { origin, prefix } => self.go_on_passing(origin, prefix),
            Effect::GoOn { origin, order } => {
                if let Some(worker) = self.worker_of(origin) {
                    self.tell(worker, ToWorker::GoOn(order));
                }
            }
            Effect::Jump(jump) => self.jump(&jump),
            Effect::Ended(_) => self.tell_origins(),
            Effect::Stop => self.tell_run(RunEvent::StopSeen(self.run)),
            Effect::Diverged(reason) => self.tell_run(RunEvent::Diverged(self.run, reason)),
            Effect::RestartWorkers => self.hang_up_all(),
            Effect::WorkerFault(reason) => {
                self.notice(ExchangeNews::BatchRejected(reason));
                self.hang_up_all();
            }
            Effect::Reset(node) => {
                self.effects.push(RunExchangeEffect::Reconnect(node));
                self.drop_link(node);
            }
            Effect::Quarantine { peer, reason } => {
                self.notice(ExchangeNews::Quarantined { peer, reason });
                self.effects.push(RunExchangeEffect::Disconnect(peer));
                self.drop_link(peer);
                let (run, node) = (self.run, peer);
                self.tell_run(RunEvent::Lied { run, node });
            }
            Effect::Spoilt => self.notice(ExchangeNews::Spoilt),
            Effect::Giving(to) => self.notice(ExchangeNews::Giving(to)),
            Effect::Mended(weight) => self.notice(ExchangeNews::Mended(weight)),
            Effect::Damaged(error) => self.notice(ExchangeNews::Damaged(error)),
            Effect::Healed => self.notice(ExchangeNews::Healed),
        }
    }

    /// Lets a worker take its turn in sequential averaging, where a sum of differences passes from worker to worker.
    /// `prefix` is the sum of the workers before it, if there are any.
    fn go_on_passing(&mut self, origin: OriginId, prefix: Option<Prefix>) {
        let Some(worker) = self.worker_of(origin) else {
            return;
        };
        match prefix.and_then(|prefix| prefix.encode().ok()) {
            Some(contents) => self.deliver(worker, Kind::Prefix, &contents.into()),
            None => self.tell(worker, ToWorker::GoOnPassing),
        }
    }

    /// Moves the weights of all workers by the sum of a merged range (successive batches of one worker) or of a
    /// snapshot.
    fn jump(&mut self, jump: &Jump) {
        if let Some(origin) = jump.order.origin {
            let batches = jump.order.batches;
            self.notice(ExchangeNews::RangeApplied { origin, batches });
        }
        self.last = Some(self.now);
        for worker in self.workers_but(None) {
            for piece in jump.sums.entries().chunks(SUMS_PER_PIECE) {
                self.tell(worker, ToWorker::Sums(piece.to_vec()));
            }
            self.tell(worker, ToWorker::Jump(Box::new(jump.order.clone())));
        }
    }

    pub(super) fn pipeline_event(&mut self, event: PipelineEvent) {
        let mut effects = Vec::new();
        self.pipeline.handle(event, &self.plan, &mut effects);
        for effect in effects {
            self.follow_pipeline(effect);
        }
    }

    /// Tells workers which origins (workers' streams of batches) emit no more batches, if that has changed.
    pub(super) fn tell_origins(&mut self) {
        let mut effects = Vec::new();
        self.pipeline.compare_origins(self.exchange.origins(), &mut effects);
        for effect in effects {
            self.follow_pipeline(effect);
        }
    }

    fn follow_pipeline(&mut self, effect: PipelineEffect) {
        match effect {
            PipelineEffect::Send { to, bytes } => {
                let message = Message::Flow(bytes);
                self.effects.push(RunExchangeEffect::Send { to, message });
            }
            PipelineEffect::Deliver(bytes) => {
                for worker in self.workers_but(None) {
                    self.deliver(worker, Kind::Flow, &bytes);
                }
            }
            PipelineEffect::Broken => self.tell_all(&ToWorker::PipelineBroken),
            PipelineEffect::Slot { slot, alive } => self.tell_all(&ToWorker::Slot { slot, alive }),
            PipelineEffect::Origin { origin, alive } => self.tell_all(&ToWorker::Origin { origin, alive }),
            PipelineEffect::HangUp(worker) => {
                self.notice(ExchangeNews::FlowRejected);
                self.effects.push(RunExchangeEffect::HangUp(worker));
            }
        }
    }

    fn deliver(&mut self, worker: WorkerKey, kind: Kind, contents: &Arc<[u8]>) {
        let contents = Arc::clone(contents);
        self.effects.push(RunExchangeEffect::Deliver { worker, kind, contents });
    }

    fn hang_up_all(&mut self) {
        self.effects
            .extend(self.seats.keys().copied().map(RunExchangeEffect::HangUp));
    }
}
