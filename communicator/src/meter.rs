//! A token bucket: a budget with a burst, which is refilled at a rate per second. Pure.

use std::time::Duration;

/// A token bucket: a budget that is spent by an action and refilled over time, so that the rate of actions is limited.
#[derive(Debug)]
pub(crate) struct Meter {
    a_second: f64,
    at_once: f64,
    left: f64,
    at: Duration,
}

impl Meter {
    /// Creates a full budget of `at_once`, which is refilled by `a_second` per second.
    pub(crate) fn new(a_second: u32, at_once: u32) -> Self {
        Self {
            a_second: f64::from(a_second),
            at_once: f64::from(at_once),
            left: f64::from(at_once),
            at: Duration::ZERO,
        }
    }

    /// Spends an amount of the budget, even if that goes negative. Returns the time until it is refilled to zero.
    pub(crate) fn spend(&mut self, amount: usize, now: Duration) -> Duration {
        self.fill(now);
        self.left -= amount as f64;
        Duration::from_secs_f64((-self.left / self.a_second).max(0.0))
    }

    /// Spends an amount if the budget has that much. Returns true if it had.
    pub(crate) fn try_spend(&mut self, amount: usize, now: Duration) -> bool {
        self.fill(now);
        let there = self.left >= amount as f64;
        if there {
            self.left -= amount as f64;
        }
        there
    }

    fn fill(&mut self, now: Duration) {
        let gained = now.saturating_sub(self.at).as_secs_f64() * self.a_second;
        self.at = now;
        self.left = (self.left + gained).min(self.at_once);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_what_is_beyond_takes_its_time() {
        let mut meter = Meter::new(100, 1000);
        assert_eq!(meter.spend(1000, Duration::ZERO), Duration::ZERO);
        assert_eq!(meter.spend(50, Duration::ZERO), Duration::from_millis(500));
        assert_eq!(meter.spend(50, Duration::from_secs(1)), Duration::ZERO);
        // However long nothing is spent, the budget never exceeds the burst.
        assert_eq!(meter.spend(1100, Duration::from_hours(1)), Duration::from_secs(1));
    }

    #[test]
    fn what_is_not_there_is_not_spent() {
        let mut meter = Meter::new(1, 2);
        let at = Duration::from_secs;
        assert!(meter.try_spend(1, at(0)) && meter.try_spend(1, at(0)));
        assert!(!meter.try_spend(1, at(0)) && !meter.try_spend(2, at(1)));
        assert!(meter.try_spend(1, at(1)) && !meter.try_spend(1, at(1)));
    }
}
