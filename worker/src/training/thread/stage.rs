//! The thread of a worker that holds a stage of a network. It carries out the decisions of the stage's training loop.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use super::ends::{Inbox, Outbox};
use super::{LoopEnd, TrainingThread, spawn};
use crate::machine::parallel::Threads;
use crate::machine::thread_time::ThreadTimer;
use crate::stage::HoldsStage;
use crate::trainer::Trainer;
use crate::training::{FromTraining, StageProgress, StageTraining, TrainingError};

/// Starts the thread that trains as one worker of a pipeline, until all senders of messages are gone. The training's
/// clock starts when the training was created.
pub fn start_stage<T: Trainer + HoldsStage>(
    threads: Threads,
    make: impl FnOnce() -> Result<StageTraining<T>, TrainingError> + Send + 'static,
) -> Result<TrainingThread, Box<dyn std::error::Error + Send + Sync>> {
    spawn(threads, move |inbox, outbox| run(make()?, inbox, outbox))
}

fn run<T: Trainer + HoldsStage>(
    mut training: StageTraining<T>,
    inbox: &Inbox,
    outbox: &Outbox,
) -> Result<Infallible, LoopEnd> {
    let start = Instant::now();
    let mut timer = ThreadTimer::start();
    let mut waited = Duration::ZERO;
    loop {
        while training.has_room()
            && let Some(event) = inbox.next_waiting()?
        {
            training.hear(event, start.elapsed())?;
        }
        let progress = training.advance(start.elapsed(), outbox.is_full())?;
        for mut message in training.take_outbox() {
            if let FromTraining::Step { step, time, .. } = &mut message {
                // All time but training is exchange: applying, quantising, encoding, and waiting.
                let exchange = timer.elapsed().saturating_sub(step.training_time);
                time.exchange = exchange + std::mem::take(&mut waited);
                timer = ThreadTimer::start();
            }
            let sending = Instant::now();
            outbox.send(message)?;
            waited += sending.elapsed();
        }
        if let StageProgress::Waits(limit) = progress {
            let waiting = Instant::now();
            if let Some(event) = inbox.next_within(limit)? {
                training.hear(event, start.elapsed())?;
            }
            waited += waiting.elapsed();
        }
    }
}
