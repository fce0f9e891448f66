//! Throttling: decides when a worker makes no step because its batches are not taken.

use std::time::Duration;

/// Largest number of throttled steps in a row; their gradients are all of the same weights.
const THROTTLED_MAX: usize = 16;
/// Time for which the worker waits for a full outbox before it throttles steps.
const FULL_LIMIT: Duration = Duration::from_millis(100);

/// The throttling of a worker whose batches are not taken: it first goes on training while changes stay in the
/// residual, and later waits.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// True if the node has enough to send.
    is_paused: bool,
    /// Number of steps in a row after which no batch left.
    steps: usize,
    /// Time at which the outbox became full; `None` while it has room.
    full_since: Option<Duration>,
}

impl Throttle {
    /// Records that the node has enough to send, or takes batches again.
    pub(crate) fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// True if no batch should leave after the next step, if that is possible.
    pub(crate) fn is_on(&self, is_full: bool) -> bool {
        self.is_paused || is_full
    }

    /// Counts a step, after which a batch left or not.
    pub(crate) fn count_step(&mut self, has_emitted: bool) {
        self.steps = if has_emitted { 0 } else { self.steps + 1 };
    }

    /// True if a step would be pointless now: a full outbox mostly empties in a moment, and a long row of throttled
    /// steps is no better than waiting.
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
