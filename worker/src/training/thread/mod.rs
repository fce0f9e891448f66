//! The training thread. It owns the trainer, which cannot leave the thread it was made on, and exchanges messages with
//! the rest through two bounded channels.
//!
//! Before every step the thread takes all waiting messages. If its batches are not taken, it is throttled: it goes on
//! training for a while with changes kept in the residual, and then it waits.

mod ends;
mod stage;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use protocol::stats::measured::Moment;
use protocol::wire::attach::{Pace, SaveOrder};

use crate::machine::parallel::Threads;
use crate::machine::thread_time::ThreadTimer;
use crate::trainer::{TrainError, Trainer};
use crate::training::{
    FOR_EVER, FromTraining, LOOK_AGAIN, NORM_EVERY, Next, StepTime, Throttle, ToTraining, Training, TrainingError,
};
pub use ends::Outbound;
use ends::{Inbox, Outbox};
pub use stage::start_stage;

/// Number of queued messages from the training thread at which the worker sends no further batches for now.
const OUTBOUND_MAX: usize = 8;
/// Number of queued messages to the training thread at which their sender must wait.
const INBOUND_MAX: usize = 1024;

/// Running thread that trains, with the channels to and from it.
pub struct TrainingThread {
    /// Channel for messages to the training thread. Dropping it ends the thread.
    pub inbound: SyncSender<ToTraining>,
    /// Channel of messages from the training thread.
    pub outbound: Outbound,
    pub thread: JoinHandle<()>,
}

/// Reason why the training thread's loop ended early.
enum LoopEnd {
    /// Reason why the training loop ended: all receivers or senders are gone, so that the end cannot be reported.
    Unheard,
    Failed(TrainingError),
}

impl<E: Into<TrainingError>> From<E> for LoopEnd {
    fn from(error: E) -> Self {
        match error.into() {
            TrainingError::Train(TrainError::Unheard) => Self::Unheard,
            error => Self::Failed(error),
        }
    }
}

/// Schedule of the evaluations that a worker makes without being asked by its node.
struct Pacing {
    pace: Pace,
    /// Number of samples trained by all workers, as contained in the weights, at which the next evaluation is due.
    due_at: u64,
    begun: Instant,
}

impl Pacing {
    fn new(pace: Pace, samples: u64) -> Self {
        Self {
            pace,
            due_at: samples + pace.every,
            begun: Instant::now(),
        }
    }

    /// Returns the present moment (samples and time of the run) for an evaluation, if one is due with this many samples
    /// in the weights.
    fn due(&mut self, samples: u64) -> Option<Moment> {
        if samples < self.due_at {
            return None;
        }
        self.due_at = samples + self.pace.every;
        Some(Moment {
            samples,
            seconds: self.pace.seconds + self.begun.elapsed().as_secs_f64(),
        })
    }
}

/// Starts the thread that trains. The thread creates its training, trains until all samples are done, and then obeys
/// messages until all senders are gone.
pub fn start<T: Trainer>(
    threads: Threads,
    pace: Option<Pace>,
    make: impl FnOnce() -> Result<Training<T>, TrainingError> + Send + 'static,
) -> Result<TrainingThread, Box<dyn std::error::Error + Send + Sync>> {
    spawn(threads, move |inbox, outbox| {
        let training = make()?;
        let pacing = pace.map(|pace| Pacing::new(pace, training.samples_applied()));
        Loop::new(training, inbox, outbox, pacing).run()
    })
}

/// Starts a training thread: it runs `run` between two bounded channels until their other ends are gone.
fn spawn(
    threads: Threads,
    run: impl FnOnce(&Inbox, &Outbox) -> Result<Infallible, LoopEnd> + Send + 'static,
) -> Result<TrainingThread, Box<dyn std::error::Error + Send + Sync>> {
    let (inbound, inbox) = sync_channel(INBOUND_MAX);
    // Twice the limit: it is checked before a step, and messages without batches come between.
    let (sender, receiver) = sync_channel(2 * OUTBOUND_MAX);
    let waiting = Arc::new(AtomicUsize::new(0));
    let outbox = Outbox::new(sender, Arc::clone(&waiting));
    // Each worker has its own pool: several workers of one process must not queue behind each other.
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
        // Subnormal numbers slow arithmetic down a hundredfold and mean nothing here.
        dfdx::flush_denormals_to_zero();
        if let Err(LoopEnd::Failed(error)) = run(&Inbox::new(inbox), &outbox) {
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
        outbound: Outbound::new(receiver, waiting),
        thread,
    })
}

/// Loop of the training thread of a worker that holds a whole network.
struct Loop<'a, T> {
    training: Training<T>,
    inbox: &'a Inbox,
    outbox: &'a Outbox,
    start: Instant,
    throttle: Throttle,
    closed: bool,
    /// Orders to finish the run that wait until the worker's stream of batches has ended.
    finishes: VecDeque<Option<SaveOrder>>,
    /// Schedule of the evaluations that this worker makes by itself.
    pace: Option<Pacing>,
    /// True if the worker has told its node that it has nothing to train.
    starved: bool,
    /// Start of the present time in which this worker finds nothing to train; `None` while it trains.
    idle_since: Option<Instant>,
    /// Time for which the worker has waited since its last step.
    waited: Duration,
    /// The part of `waited` in which the worker waited for other workers' rounds.
    waited_for_rounds: Duration,
}

impl<'a, T: Trainer> Loop<'a, T> {
    fn new(training: Training<T>, inbox: &'a Inbox, outbox: &'a Outbox, pace: Option<Pacing>) -> Self {
        Self {
            training,
            inbox,
            outbox,
            start: Instant::now(),
            throttle: Throttle::default(),
            closed: false,
            finishes: VecDeque::new(),
            pace,
            starved: false,
            idle_since: None,
            waited: Duration::ZERO,
            waited_for_rounds: Duration::ZERO,
        }
    }

    /// Trains until all samples are done, ends the worker's stream of batches, and then applies other workers' batches
    /// until all senders of messages are gone.
    fn run(mut self) -> Result<Infallible, LoopEnd> {
        self.train()?;
        self.outbox.send(FromTraining::Closed(self.training.close()?))?;
        self.closed = true;
        loop {
            self.save()?;
            self.finish()?;
            if let Some(message) = self.inbox.next_within(FOR_EVER)? {
                self.take(message)?;
            }
        }
    }

    /// Answers all orders to finish. More batches may come nevertheless, and another order after them.
    fn finish(&mut self) -> Result<(), LoopEnd> {
        while let Some(order) = self.finishes.pop_front() {
            self.outbox.send(self.training.learner.finished(order, None)?)?;
        }
        Ok(())
    }

    fn train(&mut self) -> Result<(), LoopEnd> {
        loop {
            let timer = ThreadTimer::start();
            self.take_all()?;
            self.save()?;
            let is_full = self.outbox.is_full();
            let can_throttle = self.training.can_throttle();
            if self.throttle.should_wait(self.start.elapsed(), is_full, can_throttle) {
                self.wait(LOOK_AGAIN)?;
                continue;
            }
            let throttle = self.throttle.is_on(self.outbox.is_full());
            if self.starved && self.training.has_more() {
                self.starved = false;
                self.outbox.send(FromTraining::Fed)?;
            }
            let mut encoded = Vec::new();
            let mut prefix = None;
            let (step, encoded) = match self.training.step(throttle, &mut encoded)? {
                Next::Emitted(step) => (step, Some(encoded)),
                Next::Kept(step) => (step, None),
                Next::Passed(step) => {
                    prefix = Some(encoded);
                    (step, None)
                }
                Next::Waiting => {
                    let (before, for_round) = (self.waited, self.training.waits_for_round());
                    let idle_since = *self.idle_since.get_or_insert_with(Instant::now);
                    self.wait(NORM_EVERY)?;
                    // Counts from the first wait: messages without samples, such as orders to save, may interrupt a
                    // wait.
                    let is_idle = idle_since.elapsed() >= NORM_EVERY;
                    if is_idle && !self.starved && self.training.is_starved() && !self.training.has_more() {
                        self.starved = true;
                        self.outbox.send(FromTraining::Starved(self.training.missing()))?;
                    }
                    if for_round {
                        self.waited_for_rounds += self.waited.saturating_sub(before);
                    }
                    continue;
                }
                Next::Done => return Ok(()),
            };
            self.idle_since = None;
            self.throttle.count_step(encoded.is_some());
            // All time but training is exchange: applying, quantising, encoding, and waiting.
            let time = StepTime {
                training: step.training_time,
                exchange: timer.elapsed().saturating_sub(step.training_time) + std::mem::take(&mut self.waited),
                waited: std::mem::take(&mut self.waited_for_rounds),
            };
            let sending = Instant::now();
            let has_emitted = encoded.is_some();
            self.outbox.send(FromTraining::Step { encoded, step, time })?;
            if has_emitted {
                self.evaluate_if_due()?;
            }
            if let Some(prefix) = prefix {
                self.outbox.send(FromTraining::Prefix(prefix))?;
            }
            if let Some(norm) = self.training.learner.check(self.start.elapsed())? {
                self.outbox.send(norm)?;
            }
            self.waited += sending.elapsed();
        }
    }

    /// Sends the worker's state for each order to save, if it can be saved now.
    fn save(&mut self) -> Result<(), LoopEnd> {
        while let Some(saved) = self.training.answer_save(self.closed)? {
            self.outbox.send(saved)?;
        }
        Ok(())
    }

    /// Sends the weights for an evaluation that this worker makes by itself, if one is due. These are the weights after
    /// its last batch, and the next step waits until they are taken.
    fn evaluate_if_due(&mut self) -> Result<(), LoopEnd> {
        let samples = self.training.samples_applied();
        if let Some(moment) = self.pace.as_mut().and_then(|pace| pace.due(samples)) {
            let weights = self.training.trainer().copy_weights()?;
            self.outbox.send(FromTraining::WeightsInTurn(weights, moment, None))?;
        }
        Ok(())
    }

    /// Handles all waiting messages to the training thread.
    fn take_all(&mut self) -> Result<(), LoopEnd> {
        while let Some(message) = self.inbox.next_waiting()? {
            self.take(message)?;
        }
        Ok(())
    }

    /// Waits for the next message to the training thread, for `limit` at most, and handles it.
    fn wait(&mut self, limit: Duration) -> Result<(), LoopEnd> {
        let waiting = Instant::now();
        if let Some(message) = self.inbox.next_within(limit)? {
            self.take(message)?;
        }
        self.waited += waiting.elapsed();
        Ok(())
    }

    fn take(&mut self, message: ToTraining) -> Result<(), LoopEnd> {
        match message {
            ToTraining::Pause(is_paused) => self.throttle.pause(is_paused),
            ToTraining::Copy(moment) => {
                let weights = self.training.trainer().copy_weights()?;
                self.outbox.send(FromTraining::Weights(weights, moment))?;
            }
            ToTraining::CopyLast(moment, answer) => {
                let weights = self.training.trainer().copy_weights()?;
                self.outbox
                    .send(FromTraining::WeightsInTurn(weights, moment, Some(answer)))?;
            }
            ToTraining::Finish(order) => {
                if order.is_some() {
                    self.finishes.retain(Option::is_none);
                }
                self.finishes.push_back(order);
            }
            message => self.training.hear(message)?,
        }
        Ok(())
    }
}
