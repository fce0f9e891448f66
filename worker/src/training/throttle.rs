//! Throttling: decides when a worker makes no step because its batches are not taken.

use std::time::Duration;

/// Largest number of steps in a row without a batch; after them the worker waits. None of these steps moves the shared
/// weights.
const THROTTLED_MAX: usize = 16;
/// Time for which a worker waits for a full queue of batches to empty before it makes steps without sending.
const FULL_LIMIT: Duration = Duration::from_millis(100);

/// The throttling of a worker whose node takes no batches for now: at first the worker goes on training, and its
/// changes stay in the residual (learned, not sent yet); later it waits.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// True if the node has enough to send, and has told the worker to send no batches.
    is_paused: bool,
    /// Number of steps in a row after which no batch left.
    steps: usize,
    /// Time at which the queue of the worker's batches became full; `None` while it has room.
    full_since: Option<Duration>,
}

impl Throttle {
    /// Records the node's order to send no batches for now, or to send them again.
    pub(crate) fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// True if no batch should leave after the next step, if that is possible, because the node or the queue is full.
    pub(crate) fn is_on(&self, is_full: bool) -> bool {
        self.is_paused || is_full
    }

    /// Counts a step, after which a batch left or not.
    pub(crate) fn count_step(&mut self, has_emitted: bool) {
        self.steps = if has_emitted { 0 } else { self.steps + 1 };
    }

    /// True if the worker should wait instead of making a step without a batch: a full queue mostly empties in a
    /// moment, and a long row of such steps is no better than waiting.
    pub(crate) fn should_wait(&mut self, now: Duration, is_full: bool, can_throttle: bool) -> bool {
        if !is_full {
            self.full_since = None;
        }
        let since = is_full.then(|| *self.full_since.get_or_insert(now));
        let momentary = since.is_some_and(|since| now.saturating_sub(since) < FULL_LIMIT);
        let long = self.steps >= THROTTLED_MAX || !can_throttle;
        (is_full || self.is_paused) && (long || momentary && !self.is_paused)
    }
}
