//! The thread that evaluates. It keeps its device and the data on it between evaluations.

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
use crate::machine::parallel::Threads;
use crate::training::ToTraining;

/// Channel to the thread that evaluates weights while training goes on. When dropped, the thread completes its orders
/// and ends.
pub(super) struct Evaluating {
    orders: SyncSender<Order>,
    /// True while an evaluation is in progress. Weights that come meanwhile are not evaluated, unless they must be:
    /// newer ones will follow.
    busy: Arc<AtomicBool>,
}

struct Order {
    weights: Vec<f32>,
    /// Samples trained and time passed in the run when the evaluated weights were current.
    moment: Moment,
    /// Target accuracy of an evaluation, if the job has one. An evaluation that can no longer reach it ends early
    /// without a result. A loss does not tell early whether it will reach its target.
    target: Option<f64>,
    /// Channel for the answer to the training thread, if these are the last weights of the run: it tells the thread to
    /// stop with them, or to go back to better ones. `None` for all other evaluations.
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
            // Uses all cores for a short time, rather than one for long: a run that has reached its target trains on
            // until it knows.
            let threads = Threads(std::thread::available_parallelism().map_or(1, usize::from));
            let mut evaluator = prepared.evaluator(prepared.eval_task(), threads);
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
                // A failed measurement does not end the run; the final evaluation will report the failure.
                if let Err(error) = &found {
                    tracing::warn!(event = "evaluation_failed", "the model could not be measured: {error}");
                }
                let found = found.ok().filter(|found| found.samples == prepared.dataset.test.len());
                let scores = found.map(|found| found.scores());
                let loss = scores.as_ref().map(|scores| scores.loss);
                // The weights are stored first: the receiver of the evaluation may ask for them at once.
                if let Some((scores, weights)) = scores.as_ref().zip(copy.filter(|_| answer.is_none())) {
                    kept.take_note(&prepared.job, scores, weights);
                }
                if let Some(scores) = scores {
                    let evaluation = Evaluation::of(moment, scores);
                    let _ = writer.message(&FromWorker::Evaluated { run, evaluation });
                }
                if let Some(answer) = answer {
                    let better = kept.take_better(loss);
                    // A thread that has ended has reported the reason.
                    let _ = answer.send(better.map_or(ToTraining::Stop, ToTraining::GoBack));
                }
                done.store(false, Ordering::Relaxed);
            }
        })?;
        Ok(Self { orders, busy })
    }

    /// Asks the evaluating thread for an evaluation, unless one is in progress. Returns true if the evaluation will be
    /// made.
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

    /// Queues an evaluation that must not be skipped. `answer` is set for the run's last weights: over this channel the
    /// training thread is told to stop with them or to go back to better ones.
    pub(super) fn ask_in_turn(&self, weights: Vec<f32>, moment: Moment, answer: Option<SyncSender<ToTraining>>) {
        // An evaluating thread that has ended has reported the reason; training's channel then closes with the run.
        let _ = self.orders.send(Order {
            weights,
            moment,
            target: None,
            answer,
        });
    }
}
