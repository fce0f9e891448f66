//! Measures the time for which workers are throttled.

use std::time::Duration;

/// The times in a run during which workers were throttled.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// Time at which the current pause of the workers began; `None` if workers are not throttled.
    since: Option<Duration>,
    /// Total time of the workers' earlier pauses.
    before: Duration,
}

impl Pauses {
    /// Starts or ends a pause of the workers. Returns true if that is a change.
    pub(super) fn change(&mut self, pause: bool, now: Duration) -> bool {
        if pause == self.is_on() {
            return false;
        }
        match self.since.take() {
            Some(since) => self.before += now.saturating_sub(since),
            None => self.since = Some(now),
        }
        true
    }

    /// Returns true if workers are throttled.
    pub(super) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// Total time for which workers were throttled, including the current pause.
    pub(super) fn total(&self, now: Duration) -> Duration {
        let present = self.since.map(|since| now.saturating_sub(since));
        self.before + present.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_add_up_and_are_told_when_they_begin_and_end() {
        let at = Duration::from_secs;
        let mut pauses = Pauses::default();
        assert!(!pauses.change(false, at(0)) && !pauses.is_on());
        assert!(pauses.change(true, at(1)) && pauses.is_on());
        assert!(
            !pauses.change(true, at(2)),
            "workers are told only when a pause begins or ends"
        );
        assert_eq!(pauses.total(at(3)), Duration::from_secs(2));
        assert!(pauses.change(false, at(4)));
        assert!(pauses.change(true, at(9)));
        assert_eq!(pauses.total(at(10)), Duration::from_secs(4));
    }
}
