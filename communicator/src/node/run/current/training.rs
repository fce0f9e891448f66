//! Training: what workers say, and when the run is to be evaluated, written down or stopped.

use std::sync::Arc;
use std::time::Instant;

use protocol::attach::{DataInfo, FromWorker, ToWorker};
use protocol::control::{Phase, StopReason};
use protocol::ids::NodeId;
use tokio::sync::OwnedSemaphorePermit;

use super::{Attached, Context, Current};
use crate::checkpoint;
use crate::node::exchange::{ExchangeMessage, Progress, Readiness};
use crate::node::run::seat::Seat;
use crate::node::workers::{WorkerHandle, WorkerKey};

/// Evaluations in an epoch, with a target that is to be hit and without.
const EVALUATIONS_WITH_TARGET: u64 = 16;
const EVALUATIONS: u64 = 1;

impl Current {
    pub(in crate::node::run) fn batch(&self, key: WorkerKey, bytes: Arc<[u8]>, permit: Option<OwnedSemaphorePermit>) {
        if let Some(exchange) = &self.exchange {
            let _ = exchange.cast(ExchangeMessage::Local { key, bytes, permit });
        }
    }

    pub(super) fn seat_of(&mut self, key: WorkerKey) -> Option<&mut Seat> {
        self.seats.values_mut().find(|seat| seat.worker == Some(key))
    }

    pub(in crate::node::run) async fn hear(
        &mut self,
        worker: &WorkerHandle,
        word: FromWorker,
        context: &Context,
        attached: &Attached,
    ) {
        match word {
            FromWorker::Prepared { run, data } if run == self.run => {
                self.prepared(worker, Ok(data), context, attached).await;
            }
            FromWorker::Refused { run, reason } if run == self.run => {
                self.prepared(worker, Err(reason), context, attached).await;
            }
            FromWorker::Stats(stats) => {
                if let Some(seat) = self.seat_of(worker.key) {
                    seat.count(*stats);
                }
            }
            FromWorker::Evaluated { run, scores } if run == self.run && self.phase != Phase::Finishing => {
                tracing::info!(accuracy = scores.accuracy, loss = scores.loss, "evaluated");
                self.scores = Some(scores);
                let reached = |target| scores.accuracy >= target;
                if self.job.target_accuracy.is_some_and(reached) {
                    self.stop(StopReason::TargetReached, context);
                }
            }
            FromWorker::Saved { sequence, path } => {
                if let Some(exchange) = &self.exchange {
                    let key = worker.key;
                    let _ = exchange.cast(ExchangeMessage::Saved { key, sequence, path });
                }
            }
            FromWorker::Closed { residual_norm } => {
                tracing::info!(residual_norm, "a worker is done; what it has not emitted is dropped");
                if let Some(seat) = self.seat_of(worker.key) {
                    seat.closed = true;
                }
                self.try_finish(context, attached).await;
            }
            FromWorker::Finished { digest } => {
                if let Some(seat) = self.seat_of(worker.key) {
                    seat.digest = digest;
                    seat.finished = !seat.saves;
                }
                self.try_settle(context, attached);
            }
            FromWorker::SavedModel { run, saved } if run == self.run => {
                match saved {
                    Ok(scores) => {
                        self.final_scores = Some(scores);
                        self.scores = Some(scores);
                    }
                    Err(reason) => tracing::error!(reason, "the model could not be saved"),
                }
                if let Some(seat) = self.seat_of(worker.key) {
                    seat.finished = true;
                }
                self.try_settle(context, attached);
            }
            FromWorker::Failed { reason, diverged } => {
                let known = self.seat_of(worker.key).is_some();
                if known && diverged {
                    self.fail(reason, context, attached);
                } else if known {
                    tracing::error!(reason, "a worker failed; it is started again");
                    worker.hang_up();
                }
            }
            FromWorker::Hello(_)
            | FromWorker::Alive
            | FromWorker::Idle
            | FromWorker::SavedModel { .. }
            | FromWorker::Prepared { .. }
            | FromWorker::Refused { .. }
            | FromWorker::Evaluated { .. } => {}
        }
    }

    async fn prepared(
        &mut self,
        worker: &WorkerHandle,
        answer: Result<DataInfo, String>,
        context: &Context,
        attached: &Attached,
    ) {
        if self.phase == Phase::Preparing {
            self.prepared.insert(worker.key, Some(answer));
            self.try_answer(context, attached).await;
            return;
        }
        let expected = self.begin.as_ref().map(|begin| &begin.data);
        match answer {
            // Too late: the run ends without it.
            Ok(_) if self.phase != Phase::Training || self.stop.is_some() => worker.tell(ToWorker::Abort),
            Ok(data) if Some(&data) == expected => self.seat(worker),
            Ok(_) => tracing::error!("the data has changed since the run began: the worker is not used"),
            Err(reason) => tracing::error!(reason, "a worker that was started again cannot take part"),
        }
    }

    pub(in crate::node::run) async fn worker_gone(&mut self, key: WorkerKey, context: &Context, attached: &Attached) {
        self.prepared.remove(&key);
        if let Some(seat) = self.seat_of(key) {
            seat.leave();
            if let Some(exchange) = &self.exchange {
                let _ = exchange.cast(ExchangeMessage::Unseat(key));
            }
        }
        match self.phase {
            Phase::Preparing => self.try_answer(context, attached).await,
            Phase::Finishing => self.try_settle(context, attached),
            _ => self.try_finish(context, attached).await,
        }
    }

    pub(in crate::node::run) async fn progressed(
        &mut self,
        progress: Progress,
        context: &Context,
        attached: &Attached,
    ) {
        self.progress = progress;
        match progress.readiness {
            Readiness::Ready => self.seat_workers(attached),
            Readiness::Stranded if !self.is_over() => {
                let reason = "all who had something of it are gone; `tau start --resume` goes on from a checkpoint";
                return self.withdraw(reason, context, attached);
            }
            Readiness::Stranded | Readiness::Waiting => {}
        }
        self.evaluate(context);
        self.try_finish(context, attached).await;
    }

    pub(super) fn evaluation_interval(&self, train: u64) -> u64 {
        let often = if self.job.target_accuracy.is_some() {
            EVALUATIONS_WITH_TARGET
        } else {
            EVALUATIONS
        };
        (train / often).max(1)
    }

    /// One worker of the whole cluster measures now and then: the first of the first node that is there.
    fn evaluate(&mut self, context: &Context) {
        let Some(begin) = &self.begin else {
            return;
        };
        let there = |node: NodeId| !self.silent.contains(&node) && !self.given_up.contains(&node);
        let first = begin.participants.iter().find(|participant| there(participant.node));
        let total = begin.data.train * u64::from(begin.job.epochs);
        let due = (self.evaluate_at..total).contains(&self.progress.samples) && self.stop.is_none();
        if due && first.is_some_and(|participant| participant.node == context.me.id) {
            self.evaluate_at = self.progress.samples + self.evaluation_interval(begin.data.train);
            if let Some(exchange) = &self.exchange {
                let _ = exchange.cast(ExchangeMessage::Evaluate);
            }
        }
    }

    /// Lets the exchange write a checkpoint, with what workers alone have.
    pub(in crate::node::run) fn checkpoint(&mut self, context: &Context) {
        self.checkpointed = Instant::now();
        if self.phase != Phase::Training || self.seated.is_none() {
            return;
        }
        let path = checkpoint::path(&context.dir.join(self.run.to_string()), &context.me.name);
        if let Some(exchange) = &self.exchange {
            let _ = exchange.cast(ExchangeMessage::Checkpoint(path));
        }
    }

    pub(in crate::node::run) fn stop(&mut self, reason: StopReason, context: &Context) {
        if self.stop.is_none() && !self.is_over() {
            tracing::info!(?reason, "the run is to end");
            self.stop = Some(reason);
            self.stop_workers();
            self.publish(context);
        }
    }

    /// The news came with a batch; the reason follows with a beat.
    pub(in crate::node::run) fn stop_seen(&mut self) {
        self.stop_workers();
    }

    pub(super) fn stop_workers(&self) {
        if let Some(exchange) = &self.exchange {
            let _ = exchange.cast(ExchangeMessage::Tell(ToWorker::Stop));
        }
    }
}
