//! Workers that were told to drop their run, and may be stuck in it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::event::{RunEffect, WorkerKey};

/// Who was told to drop a run and has not said that it did, and since when.
#[derive(Debug, Default)]
pub(super) struct Dismissals {
    since: BTreeMap<WorkerKey, Duration>,
}

impl Dismissals {
    /// Takes note of what workers are told.
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

    /// A worker has dropped its run, or is gone.
    pub(super) fn note_dropped(&mut self, worker: WorkerKey) {
        self.since.remove(&worker);
    }

    /// Workers that have taken longer than the limit. Each is named once.
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
