//! For how long workers were throttled.

use std::time::Duration;

/// The pauses of a run so far.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// Since when workers are throttled.
    since: Option<Duration>,
    /// How long the pauses before took.
    before: Duration,
}

impl Pauses {
    /// Workers are throttled from now on, or not any more. Returns whether that is news.
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

    /// Whether workers are throttled.
    pub(super) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    /// All pauses together, the present one included.
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
