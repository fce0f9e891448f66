//! The newest record of every node of a run.

use std::collections::BTreeMap;

use protocol::ids::RunId;
use protocol::stats::{Line, StatsRecord};

use crate::output::{self, Audience};
use crate::view::Numbers;

/// The newest records.
#[derive(Default)]
pub(crate) struct Board {
    newest: BTreeMap<String, StatsRecord>,
}

impl Board {
    /// Takes in records, and writes those of the run as lines for scripts.
    pub(crate) fn take(&mut self, run: RunId, records: &[StatsRecord], audience: Audience) {
        let run = run.to_string();
        for record in records.iter().filter(|record| record.run == run) {
            if audience == Audience::Scripts {
                output::line(&Line { event: "stats", record });
            }
            let newest = self.newest.get(&record.node);
            // After a change of node something may come late. Samples only grow.
            if newest.is_none_or(|newest| newest.samples <= record.samples) {
                self.newest.insert(record.node.clone(), record.clone());
            }
        }
    }

    pub(crate) fn samples(&self) -> u64 {
        self.newest.values().map(|record| record.samples).sum()
    }

    pub(crate) fn numbers(&self) -> Numbers {
        let mean = |of: fn(&StatsRecord) -> Option<f64>| {
            let found: Vec<f64> = self.newest.values().filter_map(of).collect();
            (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
        };
        Numbers {
            loss: mean(|record| record.loss),
            accuracy: mean(|record| record.accuracy),
            samples_per_second: self.newest.values().map(|record| record.samples_per_second).sum(),
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
        board.take(
            RunId(7),
            &[record("a", 10), record("b", 5), record("a", 8)],
            Audience::Nobody,
        );
        assert_eq!(board.samples(), 15);
        board.take(RunId(8), &[record("a", 100)], Audience::Nobody);
        assert_eq!(board.samples(), 15);
    }
}
