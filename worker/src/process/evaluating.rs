//! The thread that evaluates: it keeps the device that it evaluates on, and what lies there, from one time to the next.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use protocol::ids::RunId;
use protocol::measured::{Evaluation, Moment, Scores};
use protocol::wire::attach::FromWorker;

use super::prepared::Prepared;
use super::socket::Writer;
use crate::evaluate::{self, Evaluator};
use crate::ops::Threads;

/// The last weights that reached the target, for whoever goes back to them.
#[derive(Clone, Debug, Default)]
pub(super) struct OnTarget(Arc<Mutex<Option<Vec<f32>>>>);

impl OnTarget {
    fn put(&self, weights: Vec<f32>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(weights);
    }

    pub(super) fn take(&self) -> Option<Vec<f32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

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
}

impl Evaluating {
    pub(super) fn start(run: RunId, prepared: Arc<Prepared>, writer: Writer, on_target: OnTarget) -> io::Result<Self> {
        let (orders, asked) = sync_channel::<Order>(1);
        let busy = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&busy);
        std::thread::Builder::new().name("evaluator".into()).spawn(move || {
            // All cores for a moment, rather than one for long: a run that has reached its target trains on until it
            // knows.
            let threads = Threads(std::thread::available_parallelism().map_or(1, usize::from));
            let (dataset, layout) = (Arc::clone(&prepared.dataset), prepared.layout.clone());
            let mut evaluator = Evaluator::new(&prepared.device, dataset, layout, threads);
            let wanted = prepared.job.target_accuracy;
            for Order {
                weights,
                moment,
                target,
            } in asked
            {
                let copy = wanted.map(|_| weights.clone());
                let found = evaluator.evaluate(weights, &mut |so_far| {
                    !target.is_some_and(|target| so_far.rules_out(target))
                });
                // Failing to measure is no reason to stop: the last evaluation of all will say so.
                if let Ok(found) = found
                    && found.samples == prepared.dataset.test.len()
                {
                    let scores = scores(found);
                    if let Some((weights, wanted)) = copy.zip(wanted)
                        && scores.accuracy >= wanted
                    {
                        on_target.put(weights);
                    }
                    let evaluation = Evaluation::of(moment, scores);
                    let _ = writer.word(&FromWorker::Evaluated { run, evaluation });
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
                })
                .is_ok()
    }
}

pub(super) fn scores(evaluation: evaluate::Evaluation) -> Scores {
    Scores {
        accuracy: evaluation.accuracy,
        loss: evaluation.loss,
    }
}
