//! Pauses before a worker is started again. Pure.

use std::time::Duration;

use crate::timing::WorkerTimes;

/// Pause after a worker process has ended. It doubles while processes end soon after they were started, so that a
/// worker that cannot run does not keep the machine busy.
pub(super) struct RestartPause {
    times: WorkerTimes,
    pause: Duration,
}

impl RestartPause {
    /// Creates the pause before a worker process is started again, for a process that has never ended.
    pub(super) fn new(times: WorkerTimes) -> Self {
        Self {
            times,
            pause: times.restart_pause,
        }
    }

    /// Returns the pause before a worker process is started again if the last one has lived for this time.
    pub(super) fn after(&mut self, lived: Duration) -> Duration {
        self.pause = if lived > self.times.steady {
            self.times.restart_pause
        } else {
            (self.pause * 2).min(self.times.restart_pause_max)
        };
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Timing;

    #[test]
    fn who_fails_at_once_is_started_ever_more_rarely_until_it_holds() {
        let times = Timing::DEFAULT.workers;
        let mut pauses = RestartPause::new(times);
        assert_eq!(pauses.after(Duration::ZERO), 2 * times.restart_pause);
        assert_eq!(pauses.after(times.steady), 4 * times.restart_pause);
        for _ in 0..10 {
            assert!(pauses.after(Duration::ZERO) <= times.restart_pause_max);
        }
        assert_eq!(pauses.after(Duration::ZERO), times.restart_pause_max);
        assert_eq!(
            pauses.after(2 * times.steady),
            times.restart_pause,
            "a worker that ran steadily is restarted after the shortest pause"
        );
    }
}
