//! The ends of the training thread's channels.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::Duration;

use super::OUTBOUND_MAX;
use crate::trainer::TrainError;
use crate::training::{FromTraining, ToTraining};

/// Receiving end of the messages from the training thread. When dropped, the thread ends at its next message.
#[derive(Debug)]
pub struct Outbound {
    receiver: Receiver<FromTraining>,
    waiting: Arc<AtomicUsize>,
}

impl Outbound {
    pub(super) fn new(receiver: Receiver<FromTraining>, waiting: Arc<AtomicUsize>) -> Self {
        Self { receiver, waiting }
    }

    /// Waits for the next message from the training thread; `None` when the thread is gone.
    pub fn recv(&self) -> Option<FromTraining> {
        let message = self.receiver.recv().ok()?;
        if counts(&message) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        Some(message)
    }
}

/// True if a message counts towards the limit at which the worker is throttled. Messages that a pipeline waits for do
/// not.
fn counts(message: &FromTraining) -> bool {
    !matches!(message, FromTraining::Flow(_))
}

/// Sending end of the messages from the training thread.
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

/// Receiving end of the messages to the training thread.
pub(super) struct Inbox(Receiver<ToTraining>);

impl Inbox {
    pub(super) fn new(receiver: Receiver<ToTraining>) -> Self {
        Self(receiver)
    }

    /// Returns the next message to the training thread, if one is waiting.
    pub(super) fn next_waiting(&self) -> Result<Option<ToTraining>, TrainError> {
        match self.0.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(TrainError::Unheard),
        }
    }

    /// Waits for the next message to the training thread, for `limit` at most.
    pub(super) fn next_within(&self, limit: Duration) -> Result<Option<ToTraining>, TrainError> {
        match self.0.recv_timeout(limit) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TrainError::Unheard),
        }
    }
}
