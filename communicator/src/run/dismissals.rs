//! Workers that were told to drop their run, and may be stuck in it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::event::{RunEffect, WorkerKey};

/// Workers that were told to drop their run and have not confirmed it, with the time of the order.
#[derive(Debug, Default)]
pub(super) struct Dismissals {
    since: BTreeMap<WorkerKey, Duration>,
}

impl Dismissals {
    /// Records the workers that these effects tell to drop their run, and forgets those that they disconnect.
    pub(super) fn note(&mut self, effects: &[RunEffect], now: Duration) {
        for effect in effects {
            match effect {
                RunEffect::Dismiss(worker) => {
                    self.since.insert(*worker, now);
                }
                RunEffect::HangUp(worker) => self.note_dropped(*worker),
                _ => {}
            }
        }
    }

    /// Removes a worker from those that have yet to drop their run: it has dropped the run, or has disconnected.
    pub(super) fn note_dropped(&mut self, worker: WorkerKey) {
        self.since.remove(&worker);
    }

    /// Takes out the workers that have not dropped their run within `limit`; each worker is returned once.
    pub(super) fn take_stuck(&mut self, now: Duration, limit: Duration) -> Vec<WorkerKey> {
        let is_stuck = |_: &WorkerKey, at: &mut Duration| now.saturating_sub(*at) > limit;
        self.since.extract_if(.., is_stuck).map(|(worker, _)| worker).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_let_go_in_time_is_named_once() {
        let second = Duration::from_secs;
        let mut dismissals = Dismissals::default();
        let workers = [1, 2, 3].map(WorkerKey);
        dismissals.note(&workers.map(RunEffect::Dismiss), second(1));
        dismissals.note_dropped(workers[0]);
        dismissals.note(&[RunEffect::HangUp(workers[1])], second(2));
        assert!(dismissals.take_stuck(second(11), second(10)).is_empty());
        assert_eq!(dismissals.take_stuck(second(12), second(10)), [workers[2]]);
        assert!(dismissals.take_stuck(second(99), second(10)).is_empty());
    }
}
