//! How long a beat and its answer take. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// Beats whose answers are still counted.
const SENT_MAX: usize = 64;

/// Numbers beats, and remembers when the newest were sent.
#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    last: u64,
    sent: BTreeMap<u64, Duration>,
}

impl RoundTrips {
    /// The number of a beat that is sent now.
    pub(super) fn send(&mut self, now: Duration) -> u64 {
        self.last += 1;
        self.sent.insert(self.last, now);
        if self.sent.len() > SENT_MAX {
            self.sent.pop_first();
        }
        self.last
    }

    /// A beat was answered; how long that took, if it was sent of late.
    pub(super) fn answered(&self, number: u64, now: Duration) -> Option<Duration> {
        self.sent.get(&number).map(|&sent| now.saturating_sub(sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_the_newest_beats_are_timed_and_inventions_are_not() {
        let mut trips = RoundTrips::default();
        let second = Duration::from_secs;
        let numbers: Vec<u64> = (0..=SENT_MAX as u64).map(|at| trips.send(second(at))).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
        let now = second(100);
        assert_eq!(
            trips.answered(numbers[SENT_MAX], now),
            Some(second(100 - SENT_MAX as u64))
        );
        assert_eq!(trips.answered(numbers[1], now), Some(second(99)));
        assert_eq!(
            trips.answered(numbers[0], now),
            None,
            "the oldest beat is no longer remembered"
        );
        assert_eq!(trips.answered(numbers[SENT_MAX] + 1, now), None);
    }
}
