//! The newest record of every node of a run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use protocol::ids::RunId;
use protocol::stats::{Line, StatsRecord};

use crate::output::{self, Audience};
use crate::view::Numbers;

/// Who was not heard of for so long is in no mean and in no sum of speeds: it trains no more, as far as is known.
const SILENT: Duration = Duration::from_secs(5);

/// The newest records.
#[derive(Default)]
pub(crate) struct Board {
    newest: BTreeMap<String, Heard>,
}

struct Heard {
    record: StatsRecord,
    at: Instant,
}

impl Board {
    /// Takes in records, and writes those of the run as lines for scripts.
    pub(crate) fn take(&mut self, run: RunId, records: &[StatsRecord], now: Instant, audience: Audience) {
        let run = run.to_string();
        for record in records.iter().filter(|record| record.run == run) {
            if audience == Audience::Scripts {
                output::line(&Line { event: "stats", record });
            }
            let newest = self.newest.get(&record.node);
            // After a change of node something may come late. Samples only grow.
            if newest.is_none_or(|newest| newest.record.samples <= record.samples) {
                let record = record.clone();
                self.newest.insert(record.node.clone(), Heard { record, at: now });
            }
        }
    }

    pub(crate) fn samples(&self) -> u64 {
        self.newest.values().map(|heard| heard.record.samples).sum()
    }

    pub(crate) fn numbers(&self, now: Instant) -> Numbers {
        let alive = || {
            let heard = self
                .newest
                .values()
                .filter(|heard| now.duration_since(heard.at) < SILENT);
            heard.map(|heard| &heard.record)
        };
        let mean = |of: fn(&StatsRecord) -> Option<f64>| {
            let found: Vec<f64> = alive().filter_map(of).collect();
            (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
        };
        Numbers {
            loss: mean(|record| record.loss),
            accuracy: mean(|record| record.accuracy),
            samples_per_second: alive().map(|record| record.samples_per_second).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_late_does_not_count() {
        let record = |node: &str, samples| StatsRecord {
            node: node.into(),
            run: RunId(7).to_string(),
            samples,
            ..StatsRecord::default()
        };
        let mut board = Board::default();
        let (now, nobody) = (Instant::now(), Audience::Nobody);
        board.take(
            RunId(7),
            &[record("a", 10), record("b", 5), record("a", 8)],
            now,
            nobody,
        );
        assert_eq!(board.samples(), 15);
        board.take(RunId(8), &[record("a", 100)], now, nobody);
        assert_eq!(board.samples(), 15);
    }

    #[test]
    fn who_is_silent_is_in_no_mean() {
        let record = |node: &str, loss| StatsRecord {
            node: node.into(),
            run: RunId(7).to_string(),
            samples: 10,
            samples_per_second: 5.0,
            loss: Some(loss),
            ..StatsRecord::default()
        };
        let mut board = Board::default();
        let begin = Instant::now();
        let later = begin + SILENT;
        board.take(
            RunId(7),
            &[record("dead", 2.0), record("alive", 1.0)],
            begin,
            Audience::Nobody,
        );
        let numbers = board.numbers(begin);
        assert_eq!((numbers.loss, numbers.samples_per_second), (Some(1.5), 10.0));
        board.take(RunId(7), &[record("alive", 0.5)], later, Audience::Nobody);
        let numbers = board.numbers(later);
        assert_eq!((numbers.loss, numbers.samples_per_second), (Some(0.5), 5.0));
        assert_eq!(board.samples(), 20, "what it has trained counts");
    }
}
