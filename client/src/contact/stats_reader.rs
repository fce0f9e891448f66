//! Reads the stats records of a cluster from any node that answers, and returns each record once.
//!
//! Each node numbers the records in the order in which it heard them. After a change of node, reading starts again at
//! the beginning, and records that were read before are recognised by their contents.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use protocol::stats::StatsRecord;
use protocol::wire::control::{Reply, Request};

use super::{Contact, unexpected};
use crate::failure::Failure;

/// Number of records that a client remembers in order to recognise repeats; larger than the number that a node keeps.
const REMEMBERED_MAX: usize = 60_000;

/// Reads the records of a cluster (every node's figures, once a second), each of them once.
#[derive(Debug, Default)]
pub(crate) struct StatsReader {
    /// Number of the connection that `after` belongs to: on any other connection, all records that the node keeps are
    /// requested.
    line: u64,
    /// Number of the last record read, as counted by the node that sent it: the next request asks for the records after
    /// it.
    after: u64,
    repeats: Repeats,
}

impl StatsReader {
    /// Returns the records of nodes that came since the last call; if there are none yet, the node waits a moment for
    /// some.
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
        records.retain_mut(|record| match self.repeats.take(fingerprint(record), record.time) {
            Some(time) => {
                record.time = time;
                true
            }
            None => false,
        });
        Ok(records)
    }
}

/// Hashes a node's record without its time, so that copies of one record that were read from nodes with different
/// clocks are recognised. Two records of one node always differ, if only in processor time.
fn fingerprint(record: &StatsRecord) -> u64 {
    let record = StatsRecord {
        time: 0.0,
        ..record.clone()
    };
    let mut hasher = DefaultHasher::new();
    // A record is a tree of numbers and texts, so it can always be written as text.
    serde_json::to_string(&record).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// Records that were read before, with their times by the clock of the node that was read first. They tell which
/// records of another node are copies, to be dropped.
#[derive(Debug, Default)]
struct Repeats {
    read: VecDeque<(u64, f64)>,
    /// Times of the records that were read from another node, by the records' fingerprints: the node that records now
    /// come from may send the same ones again.
    again: HashMap<u64, VecDeque<f64>>,
    /// Seconds by which the clock of the node that records now come from is behind the first node's clock.
    behind: f64,
}

impl Repeats {
    fn start_afresh(&mut self) {
        self.again.clear();
        self.behind = 0.0;
        for &(read, time) in &self.read {
            self.again.entry(read).or_default().push_back(time);
        }
    }

    /// Returns the time of a record by the clock of the node that was read first, or `None` if the record was read
    /// before. The two times of such a repeat give the difference between that clock and the one of the node that
    /// records now come from.
    fn take(&mut self, fingerprint: u64, time: f64) -> Option<f64> {
        if let Some(known) = self.again.get_mut(&fingerprint).and_then(VecDeque::pop_front) {
            self.behind = known - time;
            return None;
        }
        let time = time + self.behind;
        if self.read.len() == REMEMBERED_MAX {
            self.read.pop_front();
        }
        self.read.push_back((fingerprint, time));
        Some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(repeats: &mut Repeats, read: &[u64]) -> Vec<u64> {
        let mut is_new = |&one: &u64| repeats.take(one, 0.0).is_some();
        read.iter().copied().filter(|one| is_new(one)).collect()
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
        (0..many).for_each(|one| assert!(repeats.take(one, 0.0).is_some()));
        assert_eq!(repeats.read.len(), REMEMBERED_MAX);
        repeats.start_afresh();
        assert!(repeats.take(0, 0.0).is_some() && repeats.take(many - 1, 0.0).is_none());
    }

    /// Copies of one record from two nodes count once, and new records of the second node get times by the clock of the
    /// first.
    #[test]
    fn clocks_of_nodes_differ_and_records_do_not() {
        let record = |samples, time| StatsRecord {
            node: "a".into(),
            samples,
            time,
            ..StatsRecord::default()
        };
        let mut repeats = Repeats::default();
        let mut take = |record: &StatsRecord| repeats.take(fingerprint(record), record.time);
        assert_eq!(take(&record(1, 100.0)), Some(100.0));
        assert_eq!(take(&record(2, 101.0)), Some(101.0));
        repeats.start_afresh();
        let mut take = |record: &StatsRecord| repeats.take(fingerprint(record), record.time);
        assert_eq!((take(&record(1, 40.0)), take(&record(2, 41.0))), (None, None));
        assert_eq!(take(&record(3, 42.5)), Some(102.5));
    }
}
