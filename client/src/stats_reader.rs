//! Reading a cluster's records, each of them once, from whichever node answers.
//!
//! Every node numbers the records that it has heard by itself. After a change of node, reading starts afresh; what was
//! read before is told by its contents.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use protocol::stats::StatsRecord;
use protocol::wire::control::{Reply, Request};

use crate::commands::unexpected;
use crate::contact::Contact;
use crate::failure::Failure;

/// Records that are remembered: as many as a node keeps, and more.
const REMEMBERED_MAX: usize = 60_000;

/// A reader.
#[derive(Debug, Default)]
pub(crate) struct StatsReader {
    /// The line that the number below is from.
    line: u64,
    /// The number of the last record.
    after: u64,
    repeats: Repeats,
}

impl StatsReader {
    /// What is new; waits a moment for news.
    pub(crate) async fn read(&mut self, contact: &Contact) -> Result<Vec<StatsRecord>, Failure> {
        let (reply, line) = contact
            .ask_on(|line| Request::Stats {
                after: if line.number == self.line { self.after } else { 0 },
            })
            .await?;
        let Reply::Stats { last, mut records } = reply else {
            return Err(unexpected(reply));
        };
        if line.number != self.line {
            self.line = line.number;
            self.repeats.start_afresh();
        }
        self.after = last;
        records.retain(|record| self.repeats.is_new(fingerprint(record)));
        Ok(records)
    }
}

/// Two records of one node differ in something, its processor's time if nothing else.
fn fingerprint(record: &StatsRecord) -> u64 {
    let mut hasher = DefaultHasher::new();
    // A record is a tree of numbers and texts, which always has a text.
    serde_json::to_string(record).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// What was read before, as often as it was read.
#[derive(Debug, Default)]
struct Repeats {
    read: VecDeque<u64>,
    /// What may come again from the node that is read now.
    again: HashMap<u64, u32>,
}

impl Repeats {
    fn start_afresh(&mut self) {
        self.again.clear();
        for &read in &self.read {
            *self.again.entry(read).or_default() += 1;
        }
    }

    fn is_new(&mut self, fingerprint: u64) -> bool {
        if let Some(times) = self.again.get_mut(&fingerprint).filter(|times| **times > 0) {
            *times -= 1;
            return false;
        }
        if self.read.len() == REMEMBERED_MAX {
            self.read.pop_front();
        }
        self.read.push_back(fingerprint);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(repeats: &mut Repeats, read: &[u64]) -> Vec<u64> {
        read.iter().copied().filter(|&one| repeats.is_new(one)).collect()
    }

    #[test]
    fn what_another_node_tells_again_is_left_out() {
        let mut repeats = Repeats::default();
        assert_eq!(new(&mut repeats, &[1, 2, 3]), [1, 2, 3]);
        repeats.start_afresh();
        assert_eq!(new(&mut repeats, &[2, 7, 1, 3, 4]), [7, 4]);
        repeats.start_afresh();
        assert_eq!(new(&mut repeats, &[1, 2, 3, 4, 5, 7]), [5]);
    }

    #[test]
    fn records_that_are_alike_count_as_often_as_they_came() {
        let mut repeats = Repeats::default();
        assert_eq!(new(&mut repeats, &[1, 1]), [1, 1]);
        repeats.start_afresh();
        assert_eq!(new(&mut repeats, &[1, 1, 1]), [1]);
    }

    #[test]
    fn little_is_remembered_and_the_newest_is() {
        let mut repeats = Repeats::default();
        let many = REMEMBERED_MAX as u64 + 5;
        (0..many).for_each(|one| assert!(repeats.is_new(one)));
        assert_eq!(repeats.read.len(), REMEMBERED_MAX);
        repeats.start_afresh();
        assert!(repeats.is_new(0) && !repeats.is_new(many - 1));
    }
}
