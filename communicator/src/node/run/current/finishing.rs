//! The end: all is settled, models are saved, and everybody's word about it is awaited.

use std::time::Duration;

use protocol::attach::{SaveOrder, ToWorker};
use protocol::control::{Phase, RunResult, Settled};
use ractor::rpc::CallResult;

use super::{Attached, Context, Current};
use crate::node::exchange::{ExchangeMessage, Settlement};
use crate::node::run::dismiss;
use crate::node::run::seat::Seat;
use crate::whereabouts;

/// How long the exchange may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_mins(1);

impl Current {
    /// When nothing more will come, workers tell what they hold, and one of them measures and saves it.
    pub(super) async fn try_finish(&mut self, context: &Context, attached: &Attached) {
        if self.phase == Phase::Training && self.seated.is_some() && (self.stop.is_some() || self.progress.complete) {
            self.phase = Phase::Settling;
            self.publish(context);
        }
        let closed = self.seats.values().all(|seat| seat.closed || seat.worker.is_none());
        if self.phase != Phase::Settling || !closed || !self.progress.settled {
            return;
        }
        let Some(exchange) = &self.exchange else {
            return;
        };
        let Ok(CallResult::Success(settlement)) = exchange.call(ExchangeMessage::Settle, Some(ANSWER_LIMIT)).await
        else {
            self.fail(
                "the exchange gives no answer; this is a fault in Tau".into(),
                context,
                attached,
            );
            return;
        };
        if settlement.digest.is_err() && self.waited_for().len() > 1 {
            // A peer is asked for its ledger; the exchange says when it is settled again.
            self.progress.settled = false;
            return;
        }
        self.phase = Phase::Finishing;
        let mut save = self.save_order(&settlement, context);
        for seat in self.seats.values_mut() {
            if let Some(worker) = seat.worker.and_then(|key| attached.get(&key)) {
                seat.saves = save.is_some();
                worker.tell(ToWorker::Finish { save: save.take() });
            }
        }
        self.settlement = Some(settlement);
        self.publish(context);
        self.try_settle(context, attached);
    }

    fn save_order(&self, settlement: &Settlement, context: &Context) -> Option<SaveOrder> {
        let path = context.model_path(self.run);
        let made = path.parent().map(std::fs::create_dir_all);
        if let Some(Err(error)) = made {
            tracing::error!(%error, path = %path.display(), "the folder for the model could not be made");
            return None;
        }
        Some(SaveOrder {
            path,
            frontier: settlement.frontier.clone(),
        })
    }

    /// When all workers have told what they hold, everybody is told what this node ended with.
    pub(super) fn try_settle(&mut self, context: &Context, attached: &Attached) {
        let told = |seat: &Seat| seat.finished || seat.worker.is_none();
        let Some(settlement) = &self.settlement else {
            return;
        };
        if self.phase != Phase::Finishing || !self.seats.values().all(told) {
            return;
        }
        let (digest, sound) = match &settlement.digest {
            Ok(digest) => (*digest, true),
            Err(error) => {
                tracing::error!(%error, "this node's replica is not the sum of its batches");
                (error.found, false)
            }
        };
        let finished = self.seats.values().filter(|seat| seat.finished);
        let workers = finished.map(|seat| seat.digest).all(|found| found == Some(digest));
        let settled = Settled {
            frontier: settlement.frontier.clone(),
            digest,
            workers_agree: Some(sound && workers),
            stats: self.stats(),
            samples: settlement.samples,
            repeated: settlement.repeated,
            bytes_sent: settlement.bytes_sent,
            seconds: settlement.seconds,
            scores: self.final_scores,
        };
        self.ending.settle(context.me.id, settled);
        self.publish(context);
        self.check_over(context, attached);
    }

    pub(super) fn check_over(&mut self, context: &Context, attached: &Attached) {
        let (Some(begin), Some(settlement)) = (&self.begin, &self.settlement) else {
            return;
        };
        if self.is_over() || self.ending.of(context.me.id).is_none() || !self.ending.is_over(&self.waited_for()) {
            return;
        }
        let model = context.model_path(self.run);
        let result = self
            .ending
            .result(context.me.id, begin, settlement.weights, self.stop.clone(), model);
        let outcome = result
            .map(Box::new)
            .ok_or_else(|| "no node could measure and save the model; see the nodes' logs".to_string());
        match &outcome {
            Ok(result) => tracing::info!(digest = %result.digest, agree = result.agree, "the run is over"),
            Err(reason) => tracing::error!(reason, "the run is over"),
        }
        self.end(outcome, context, attached);
    }

    pub(in crate::node::run) fn fail(&mut self, reason: String, context: &Context, attached: &Attached) {
        if !self.is_over() {
            tracing::error!(reason, "the run has failed");
            self.end(Err(reason), context, attached);
        }
    }

    pub(super) fn end(&mut self, outcome: Result<Box<RunResult>, String>, context: &Context, attached: &Attached) {
        self.phase = Phase::Ended;
        self.outcome = Some(outcome);
        self.ledger = None;
        if let Some(exchange) = self.exchange.take() {
            exchange.stop(None);
        }
        dismiss(attached.values());
        self.publish(context);
        whereabouts::set_run(None);
    }
}
