//! What would be said again and again, said now and then.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two lines about the same trouble.
const PAUSE: Duration = Duration::from_secs(10);

/// When something was said last. Those who share it say it in turns.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    said: Mutex<Option<Instant>>,
}

impl LogThrottle {
    /// Whether it is to be said now; then it counts as said.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let due = said.is_none_or(|said| now.duration_since(said) >= PAUSE);
        if due {
            *said = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_and_then_one_now_and_then() {
        let start = Instant::now();
        let rarely = LogThrottle::default();
        let said = (0..25).filter(|&second| rarely.is_due(start + Duration::from_secs(second)));
        assert_eq!(said.collect::<Vec<_>>(), [0, 10, 20]);
    }
}
