//! The two ends of the training thread's channels, and how a pipeline's messages are picked out of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use protocol::wire::flow::Flow;

use super::{FromTraining, OUTBOUND_MAX, ToTraining};
use crate::pipeline::{PipelineEvent, PipelineTransport};
use crate::train_error::TrainError;

/// The most messages that wait while a pipeline's are read.
const WAITING_MAX: usize = 1 << 10;

/// The receiving end of what the thread tells. Dropping it ends the thread at its next batch.
#[derive(Debug)]
pub struct Outbound {
    receiver: Receiver<FromTraining>,
    waiting: Arc<AtomicUsize>,
}

impl Outbound {
    pub(super) fn new(receiver: Receiver<FromTraining>, waiting: Arc<AtomicUsize>) -> Self {
        Self { receiver, waiting }
    }

    /// The next message, waited for; `None` when the thread is gone.
    pub fn recv(&self) -> Option<FromTraining> {
        let message = self.receiver.recv().ok()?;
        if counts(&message) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        Some(message)
    }
}

/// Whether a message takes up the room for want of which a worker is throttled. What a pipeline waits for does not.
fn counts(message: &FromTraining) -> bool {
    !matches!(message, FromTraining::Flow(_))
}

/// The sending end.
#[derive(Clone)]
pub(super) struct Outbox {
    sender: SyncSender<FromTraining>,
    waiting: Arc<AtomicUsize>,
}

impl Outbox {
    pub(super) fn new(sender: SyncSender<FromTraining>, waiting: Arc<AtomicUsize>) -> Self {
        Self { sender, waiting }
    }

    pub(super) fn send(&self, message: FromTraining) -> Result<(), TrainError> {
        if counts(&message) {
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
        self.sender.send(message).map_err(|_| TrainError::Unheard)
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= OUTBOUND_MAX
    }
}

/// What is told to the thread. A step of a pipeline reads it too, and lets wait what is not for it.
pub(super) struct Inbox {
    receiver: Receiver<ToTraining>,
    waiting: RefCell<VecDeque<ToTraining>>,
}

impl Inbox {
    pub(super) fn new(receiver: Receiver<ToTraining>) -> Self {
        Self {
            receiver,
            waiting: RefCell::default(),
        }
    }

    /// The next message, if one is there.
    pub(super) fn next_waiting(&self) -> Result<Option<ToTraining>, TrainError> {
        if let Some(message) = self.waiting.borrow_mut().pop_front() {
            return Ok(Some(message));
        }
        match self.receiver.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(TrainError::Unheard),
        }
    }

    /// The next message, if one comes in time.
    pub(super) fn next_within(&self, limit: Duration) -> Result<Option<ToTraining>, TrainError> {
        if let Some(message) = self.waiting.borrow_mut().pop_front() {
            return Ok(Some(message));
        }
        match self.receiver.recv_timeout(limit) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TrainError::Unheard),
        }
    }
}

/// A pipeline's way through these channels.
pub(super) struct PipelineEnds {
    inbox: Rc<Inbox>,
    outbox: Outbox,
    start: Instant,
}

impl PipelineEnds {
    pub(super) fn new(inbox: Rc<Inbox>, outbox: Outbox) -> Self {
        let start = Instant::now();
        Self { inbox, outbox, start }
    }
}

impl PipelineTransport for PipelineEnds {
    fn send(&self, flow: Flow) -> Result<(), TrainError> {
        self.outbox.send(FromTraining::Flow(flow))
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn put_back(&self, message: PipelineEvent) {
        self.inbox.waiting.borrow_mut().push_back(ToTraining::Pipeline(message));
    }

    fn next(&self, limit: Duration) -> Result<Option<PipelineEvent>, TrainError> {
        // Messages of the pipeline among those that wait come first; there are few, and none as a rule.
        let mut waiting = self.inbox.waiting.borrow_mut();
        let at = waiting
            .iter()
            .position(|message| matches!(message, ToTraining::Pipeline(_)));
        if let Some(ToTraining::Pipeline(message)) = at.and_then(|at| waiting.remove(at)) {
            return Ok(Some(message));
        }
        match self.inbox.receiver.recv_timeout(limit) {
            Ok(ToTraining::Pipeline(message)) => Ok(Some(message)),
            Ok(other) => {
                let stops = matches!(other, ToTraining::Stop);
                waiting.push_back(other);
                // So much waits that it has to be looked after before the pipeline.
                let is_much = waiting.len() >= WAITING_MAX;
                Ok(match (is_much, stops) {
                    (true, _) => Some(PipelineEvent::Broken),
                    (_, true) => Some(PipelineEvent::Stopping),
                    _ => None,
                })
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TrainError::Unheard),
        }
    }
}
