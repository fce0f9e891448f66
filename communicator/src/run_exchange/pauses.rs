//! Measures the time for which workers are throttled.

use std::time::Duration;

/// The times in a run during which workers were throttled: told to pause, because peers lag behind.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// Time at which the current pause of the workers began; `None` if workers are not throttled (told to pause).
    since: Option<Duration>,
    /// Total time of the workers' earlier pauses, without the current one.
    before: Duration,
}

impl Pauses {
    /// Records that the workers are to pause, or to go on. Returns true if that is a change, of which they have to be
    /// told.
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

    /// Returns true if workers are throttled: told to pause, because peers lag behind.
    pub(super) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// Total time for which workers were throttled (told to pause, because peers lag behind), the current pause
    /// included.
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
