//! Round-trip times of beats. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// Number of newest beats whose answers still count for round-trip times.
const SENT_MAX: usize = 64;

/// The last beat's number, and the times at which the newest beats were sent, from which round-trip times follow.
#[derive(Debug, Default)]
pub(super) struct RoundTrips {
    last: u64,
    sent: BTreeMap<u64, Duration>,
}

impl RoundTrips {
    /// Records that a beat (state message) of this node is sent now. Returns the beat's number, which the answers to it
    /// repeat.
    pub(super) fn send(&mut self, now: Duration) -> u64 {
        self.last += 1;
        self.sent.insert(self.last, now);
        if self.sent.len() > SENT_MAX {
            self.sent.pop_first();
        }
        self.last
    }

    /// Returns the round-trip time of a beat (state message) that was answered; `None` if the beat is too old.
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
