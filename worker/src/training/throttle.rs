//! When a worker makes no step because its batches are not taken.

use std::time::Duration;

/// Steps in a row that may be throttled; their gradients are all of the same weights.
const THROTTLED_MAX: usize = 16;
/// How long a full outbox is waited for before steps are throttled.
const FULL_LIMIT: Duration = Duration::from_millis(100);

/// Whether a worker's batches are taken, and what it does where they are not: it goes on training for a while, what would leave
/// stays in the residual, and then it waits.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// The node has enough to send.
    is_paused: bool,
    /// Steps in a row after which no batch left.
    steps: usize,
    /// The time since which the outbox is full.
    full_since: Option<Duration>,
}

impl Throttle {
    /// The node has enough to send, or takes batches again.
    pub(crate) fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Whether the next step is to let nothing leave, where that can be.
    pub(crate) fn is_on(&self, is_full: bool) -> bool {
        self.is_paused || is_full
    }

    /// Counts a step, after which a batch left or not.
    pub(crate) fn count_step(&mut self, has_emitted: bool) {
        self.steps = if has_emitted { 0 } else { self.steps + 1 };
    }

    /// Whether there is no point in a step now: a full outbox mostly empties in a moment, and throttled steps are no better
    /// than waiting when they have gone on for long.
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
