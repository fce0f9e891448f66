//! Evaluation on held-out samples, at once or on a thread of its own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use dfdx::prelude::Cpu;
use protocol::model::Layout;
use thiserror::Error;

use crate::dataset::{Dataset, Samples};
use crate::network::{Mode, Network};
use crate::ops::{OpError, Parameters, Threads, from_rows, loss};

/// Samples per minibatch of an evaluation: large enough for full speed, small enough for the cache.
const MINIBATCH: usize = 128;

/// How good a model is on samples it was not trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The share of samples whose largest logit is at their label.
    pub accuracy: f64,
    /// The mean loss.
    pub loss: f64,
    /// How many samples there were.
    pub samples: usize,
}

/// Why there is no evaluation.
#[derive(Debug, Error)]
pub enum EvaluationError {
    /// The device failed.
    #[error("the evaluation failed: {0}")]
    Device(#[from] OpError),
    /// The thread is gone.
    #[error("the evaluation thread crashed; this is a fault in Tau, please report what it printed")]
    Crashed,
}

/// Evaluates weights on samples. `progress` is told how many are done, from time to time.
pub fn evaluate(
    layout: &Layout,
    weights: Vec<f32>,
    samples: &Samples,
    threads: Threads,
    mut progress: impl FnMut(usize),
) -> Result<Evaluation, EvaluationError> {
    let device = Cpu::default();
    let network = Network::new(layout, threads);
    let parameters = Parameters::new(&device, weights)?;
    let indices: Vec<u32> = (0..samples.len() as u32).collect();
    let mut labels = Vec::new();
    let mut total = loss::Judgement::default();
    let mut done = 0;
    for minibatch in indices.chunks(MINIBATCH) {
        let mut inputs = Vec::new();
        samples.gather(minibatch, &mut inputs, &mut labels);
        let x = from_rows(&device, minibatch.len(), samples.features(), inputs)?;
        let judged = loss::judge(&network.forward(&parameters, x, Mode::Evaluation)?, &labels);
        total.loss += judged.loss;
        total.correct += judged.correct;
        done += minibatch.len();
        progress(done);
    }
    let count = samples.len().max(1) as f64;
    Ok(Evaluation {
        accuracy: total.correct as f64 / count,
        loss: total.loss / count,
        samples: samples.len(),
    })
}

/// Evaluates on a thread of its own, so that training does not wait. One evaluation at a time: while one is under
/// way, further requests are refused, and the next one that is accepted sees newer weights.
pub struct Evaluator {
    requests: Option<SyncSender<Vec<f32>>>,
    results: Receiver<Result<Evaluation, EvaluationError>>,
    busy: bool,
    thread: Option<JoinHandle<()>>,
}

impl Evaluator {
    /// Starts the thread.
    pub fn start(layout: Layout, dataset: Arc<Dataset>) -> std::io::Result<Self> {
        let (requests, inbox) = sync_channel::<Vec<f32>>(1);
        let (outbox, results) = sync_channel(1);
        let thread = std::thread::Builder::new().name("evaluator".into()).spawn(move || {
            for weights in inbox {
                let result = evaluate(&layout, weights, &dataset.test, Threads(1), |_| {});
                if outbox.send(result).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self {
            requests: Some(requests),
            results,
            busy: false,
            thread: Some(thread),
        })
    }

    /// Asks for an evaluation of the weights that `weights` makes; `false` while another one is under way.
    pub fn request(&mut self, weights: impl FnOnce() -> Vec<f32>) -> bool {
        if self.busy {
            return false;
        }
        self.busy = self
            .requests
            .as_ref()
            .is_some_and(|requests| requests.try_send(weights()).is_ok());
        self.busy
    }

    /// The result of the last request, once, when it is there.
    pub fn poll(&mut self) -> Option<Result<Evaluation, EvaluationError>> {
        match self.results.try_recv() {
            Ok(result) => {
                self.busy = false;
                Some(result)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(EvaluationError::Crashed)),
        }
    }
}

impl Drop for Evaluator {
    fn drop(&mut self) {
        // The thread ends when nobody can ask any more; an evaluation under way is waited for.
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
