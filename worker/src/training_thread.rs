//! The thread that trains. It owns the trainer, which cannot leave the thread it was made on, and speaks to the rest
//! through two bounded channels: a worker whose batches are not taken waits.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use protocol::digest::Digest;
use protocol::lattice::Tau;

use crate::ops::Threads;
use crate::thread_time::ThreadTimer;
use crate::trainer::Trainer;
use crate::training::{Step, Training, TrainingError};

/// Batches on their way out before the worker waits.
const OUTBOUND_MAX: usize = 8;
/// Batches on their way in before the sender waits.
const INBOUND_MAX: usize = 256;

/// Thread time since the last batch, by what it was spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// Loading, forward, backward, clipping and what a plain optimiser would take.
    pub training: Duration,
    /// All else, waits included.
    pub exchange: Duration,
}

/// What is told to the training thread.
#[derive(Clone, Debug)]
pub enum ToTraining {
    /// Another origin's changes, checked.
    Apply {
        /// The changes.
        words: Arc<[u32]>,
        /// How far they move.
        tau: Tau,
        /// The samples behind them.
        samples: u32,
        /// How many batches were in the weights they were computed on.
        seen: u64,
    },
    /// Take no further step; close the origin.
    Stop,
}

/// What the training thread tells.
#[derive(Debug)]
pub enum FromTraining {
    /// A step was made.
    Batch {
        /// The batch as it goes on the wire.
        frame: Vec<u8>,
        /// What the step did.
        step: Step,
        /// Where the thread's time went, since the batch before.
        time: StepTime,
    },
    /// The origin is closed: all is trained, or the thread was stopped.
    Closed(Closing),
    /// Training failed.
    Failed(TrainingError),
}

/// What remains to be said when an origin closes.
#[derive(Clone, Debug)]
pub struct Closing {
    /// The batch that closes it.
    pub frame: Vec<u8>,
    /// The digest recomputed from the weights; `None` if one has left the lattice.
    pub digest: Option<Digest>,
    /// The norm of what was never emitted and is dropped now.
    pub residual_norm: f64,
}

/// A running training thread.
pub struct TrainingThread {
    /// To the thread. Dropping it does not stop training.
    pub inbound: SyncSender<ToTraining>,
    /// From the thread. Dropping it ends the thread at its next batch.
    pub outbound: Receiver<FromTraining>,
    /// The thread itself.
    pub thread: JoinHandle<()>,
}

/// Starts a thread that makes its training and then trains until nothing is left or it is stopped.
pub fn start<T: Trainer>(
    threads: Threads,
    make: impl FnOnce() -> Result<Training<T>, TrainingError> + Send + 'static,
) -> Result<TrainingThread, Box<dyn std::error::Error + Send + Sync>> {
    let (inbound, inbox) = sync_channel(INBOUND_MAX);
    let (outbox, outbound) = sync_channel(OUTBOUND_MAX);
    // The pool is this worker's own: several workers of one process must not queue behind each other.
    let pool = match threads.0 {
        0 | 1 => None,
        many => Some(
            rayon::ThreadPoolBuilder::new()
                .num_threads(many)
                .thread_name(|n| format!("compute-{n}"))
                .start_handler(|_| dfdx::flush_denormals_to_zero())
                .build()?,
        ),
    };
    let run = move || {
        // Numbers too small for the normal range slow arithmetic down a hundredfold and mean nothing here.
        dfdx::flush_denormals_to_zero();
        let result = make().and_then(|training| train(training, &inbox, &outbox));
        if let Err(error) = result {
            // Nobody listens any more: then nobody needs to know.
            let _ = outbox.send(FromTraining::Failed(error));
        }
    };
    let thread = std::thread::Builder::new()
        .name("training".into())
        .spawn(move || match pool {
            None => run(),
            Some(pool) => pool.install(run),
        })?;
    Ok(TrainingThread {
        inbound,
        outbound,
        thread,
    })
}

fn train<T: Trainer>(
    mut training: Training<T>,
    inbox: &Receiver<ToTraining>,
    outbox: &SyncSender<FromTraining>,
) -> Result<(), TrainingError> {
    let mut waited = Duration::ZERO;
    loop {
        let timer = ThreadTimer::start();
        take_inbound(&mut training, inbox)?;
        let mut frame = Vec::new();
        let Some(step) = training.step(&mut frame)? else {
            break;
        };
        // All that is not training is exchange: applying, quantising, encoding, and waiting for room in the channel.
        let spent = timer.elapsed();
        let time = StepTime {
            training: step.training_time,
            exchange: spent.saturating_sub(step.training_time) + waited,
        };
        let sending = Instant::now();
        if outbox.send(FromTraining::Batch { frame, step, time }).is_err() {
            return Ok(());
        }
        waited = sending.elapsed();
    }
    let mut frame = Vec::new();
    training.close(&mut frame)?;
    let closing = Closing {
        frame,
        digest: training.trainer().digest()?,
        residual_norm: training.trainer().residual_norm()?,
    };
    let _ = outbox.send(FromTraining::Closed(closing));
    Ok(())
}

/// Takes everything that waits.
fn take_inbound<T: Trainer>(training: &mut Training<T>, inbox: &Receiver<ToTraining>) -> Result<(), TrainingError> {
    loop {
        match inbox.try_recv() {
            Ok(ToTraining::Apply {
                words,
                tau,
                samples,
                seen,
            }) => {
                training.apply(&words, tau, u64::from(samples), seen)?;
            }
            Ok(ToTraining::Stop) => training.stop(),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(()),
        }
    }
}
