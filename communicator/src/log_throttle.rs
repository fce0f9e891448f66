//! Throttle for log lines that would be repeated again and again.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two log lines about the same trouble.
const PAUSE: Duration = Duration::from_secs(10);

/// Throttle for one kind of log line, which several tasks may share.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    said: Mutex<Option<Instant>>,
}

impl LogThrottle {
    /// Returns true if a line may be logged now, and then counts it as logged.
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
