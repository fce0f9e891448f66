//! The thread that evaluates: it keeps the device that it evaluates on, and what lies there, from one time to the next.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use protocol::ids::RunId;
use protocol::stats::measured::{Evaluation, Moment};
use protocol::wire::attach::FromWorker;

use super::measured_weights::MeasuredWeights;
use super::prepared::Prepared;
use super::socket::Writer;
use crate::evaluate::Evaluator;
use crate::machine::parallel::Threads;
use crate::training::ToTraining;

/// The way to the thread. It ends when this is dropped and it has done what it was asked for.
pub(super) struct Evaluating {
    orders: SyncSender<Order>,
    /// One evaluation at a time; the next one asked for sees newer weights.
    busy: Arc<AtomicBool>,
}

struct Order {
    weights: Vec<f32>,
    /// When they were so.
    moment: Moment,
    /// What ends an evaluation that cannot reach it any more, without a result.
    target: Option<f64>,
    /// These are the last weights: training is told there to end with them, or to go back to better ones.
    answer: Option<SyncSender<ToTraining>>,
}

impl Evaluating {
    pub(super) fn start(
        run: RunId,
        prepared: Arc<Prepared>,
        writer: Writer,
        kept: MeasuredWeights,
    ) -> io::Result<Self> {
        let (orders, asked) = sync_channel::<Order>(1);
        let busy = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&busy);
        std::thread::Builder::new().name("evaluator".into()).spawn(move || {
            // All cores for a moment, rather than one for long: a run that has reached its target trains on until it
            // knows.
            let threads = Threads(std::thread::available_parallelism().map_or(1, usize::from));
            let layout = prepared.layout.clone();
            let mut evaluator = Evaluator::new(&prepared.device, prepared.eval_task(), layout, threads);
            for Order {
                weights,
                moment,
                target,
                answer,
            } in asked
            {
                let copy = MeasuredWeights::is_wanted(&prepared.job).then(|| weights.clone());
                let found = evaluator.evaluate(weights, None, &mut |so_far| {
                    !target.is_some_and(|target| so_far.rules_out(target))
                });
                // Failing to measure is no reason to stop: the last evaluation of all will say so.
                let found = found.ok().filter(|found| found.samples == prepared.dataset.test.len());
                let scores = found.map(|found| found.scores());
                // Whoever hears of the evaluation may want its weights at once.
                if let Some((scores, weights)) = scores.zip(copy.filter(|_| answer.is_none())) {
                    kept.take_note(&prepared.job, scores, weights);
                }
                if let Some(scores) = scores {
                    let evaluation = Evaluation::of(moment, scores);
                    let _ = writer.message(&FromWorker::Evaluated { run, evaluation });
                }
                if let Some(answer) = answer {
                    let better = kept.take_better(scores.map(|scores| scores.loss));
                    // A thread that is gone has said why.
                    let _ = answer.send(better.map_or(ToTraining::Stop, ToTraining::GoBack));
                }
                done.store(false, Ordering::Relaxed);
            }
        })?;
        Ok(Self { orders, busy })
    }

    /// Asks for an evaluation, unless one is under way.
    pub(super) fn ask(&self, weights: Vec<f32>, moment: Moment, target: Option<f64>) -> bool {
        !self.busy.swap(true, Ordering::Relaxed)
            && self
                .orders
                .try_send(Order {
                    weights,
                    moment,
                    target,
                    answer: None,
                })
                .is_ok()
    }

    /// Asks for an evaluation after those that are under way. If it is the last one, training is told here how to end.
    pub(super) fn ask_in_turn(&self, weights: Vec<f32>, moment: Moment, answer: Option<SyncSender<ToTraining>>) {
        // A thread that is gone has said why, and answers nobody: then training's channel closes with the run.
        let _ = self.orders.send(Order {
            weights,
            moment,
            target: None,
            answer,
        });
    }
}
