//! Log notices of this process that wait for its next record, so that every watcher of a cluster sees what any of its
//! machines reports.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use protocol::bounded::BoundedVec;
use protocol::stats::{LogNotice, Severity, StatsRecord};

/// Maximum number of log notices (sentences for people) that wait for the node's next record of statistics. If a node
/// has more in a second, the oldest are dropped.
const WAITING_MAX: usize = 4 * StatsRecord::SAID_MAX;

static WAITING: Mutex<VecDeque<LogNotice>> = Mutex::new(VecDeque::new());

/// Keeps a sentence for people until the node's next record of statistics carries it to all watchers.
pub fn keep(severity: Severity, text: String) {
    let text = text.into();
    add(
        &mut WAITING.lock().unwrap_or_else(PoisonError::into_inner),
        LogNotice { severity, text },
    );
}

/// Takes the oldest sentences that wait to be carried in a record of statistics, as many as one record may hold.
pub(crate) fn take() -> BoundedVec<LogNotice, { StatsRecord::SAID_MAX }> {
    next(&mut WAITING.lock().unwrap_or_else(PoisonError::into_inner))
}

fn add(waiting: &mut VecDeque<LogNotice>, notice: LogNotice) {
    if waiting.len() == WAITING_MAX {
        waiting.pop_front();
    }
    waiting.push_back(notice);
}

fn next(waiting: &mut VecDeque<LogNotice>) -> BoundedVec<LogNotice, { StatsRecord::SAID_MAX }> {
    let many = waiting.len().min(StatsRecord::SAID_MAX);
    waiting.drain(..many).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_a_record_gets_what_it_may_have() {
        let mut waiting = VecDeque::new();
        let many = WAITING_MAX + 3;
        for number in 0..many {
            let text = number.to_string();
            add(
                &mut waiting,
                LogNotice {
                    severity: Severity::News,
                    text: text.into(),
                },
            );
        }
        let mut taken = Vec::new();
        loop {
            let some = next(&mut waiting);
            if some.is_empty() {
                break;
            }
            assert!(some.len() <= StatsRecord::SAID_MAX);
            taken.extend(some.iter().map(|notice| notice.text.to_string()));
        }
        let expected: Vec<String> = (3..many).map(|number| number.to_string()).collect();
        assert_eq!(taken, expected);
    }
}
