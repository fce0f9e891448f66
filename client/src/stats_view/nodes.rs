//! The newest word of every node.

use std::collections::BTreeMap;

use protocol::stats::StatsRecord;

use super::history::Point;

/// How many rounds of the others a node may miss before it counts as silent. News of one second do not arrive in step,
/// so one or two mean nothing.
const PATIENCE: u64 = 3;

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) record: StatsRecord,
    /// Bytes per second; none before the second record and after a counter went back.
    pub(super) rate_in: Option<u64>,
    pub(super) rate_out: Option<u64>,
    /// The round of its newest record.
    round: u64,
    /// Whether the others have gone on without it.
    pub(super) silent: bool,
}

/// All nodes of a run.
///
/// Records come one per node and second, so a node's second record in a row begins a new second. Such a second is
/// called a round here, since no clock is asked.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    run: String,
    run_before: String,
    /// The newest held-out accuracy of any node.
    accuracy: Option<f64>,
    by_name: BTreeMap<String, Node>,
    round: u64,
}

impl Nodes {
    /// No node has spoken of the next run yet.
    pub(super) fn of_next_run(&self) -> Self {
        Self {
            run_before: self.run.clone(),
            ..Self::default()
        }
    }

    /// Whether a record speaks of a run that has ended: some nodes do so while others are in the next one already.
    pub(super) fn is_past(&self, record: &StatsRecord) -> bool {
        !record.run.is_empty() && record.run == self.run_before
    }

    /// Whether a record is the first word of the next run.
    pub(super) fn begins_run(&self, record: &StatsRecord) -> bool {
        !record.run.is_empty() && !self.run.is_empty() && record.run != self.run
    }

    /// Whether a record is of a later second than some record before.
    pub(super) fn begins_round(&self, record: &StatsRecord) -> bool {
        self.by_name
            .get(&record.node)
            .is_some_and(|node| node.round == self.round)
    }

    pub(super) fn update(&mut self, record: &StatsRecord) {
        if self.begins_round(record) {
            self.round += 1;
        }
        if !record.run.is_empty() {
            self.run.clone_from(&record.run);
        }
        let before = self.by_name.get(&record.node).map(|node| &node.record);
        if record.accuracy.is_some() && before.is_none_or(|before| before.accuracy != record.accuracy) {
            self.accuracy = record.accuracy;
        }
        let node = Node {
            rate_in: before.and_then(|before| record.bytes_in.checked_sub(before.bytes_in)),
            rate_out: before.and_then(|before| record.bytes_out.checked_sub(before.bytes_out)),
            round: self.round,
            silent: false,
            record: record.clone(),
        };
        self.by_name.insert(record.node.clone(), node);
        for node in self.by_name.values_mut() {
            node.silent = node.round + PATIENCE <= self.round;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// By name.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.by_name.values()
    }

    pub(super) fn run(&self) -> &str {
        &self.run
    }

    pub(super) fn accuracy(&self) -> Option<f64> {
        self.accuracy
    }

    /// Samples trained by all nodes, those that are gone included.
    pub(super) fn samples(&self) -> u64 {
        self.iter().fold(0, |sum, node| node.record.samples.saturating_add(sum))
    }

    /// Samples per second of those that are here.
    pub(super) fn samples_per_second(&self) -> f64 {
        self.here().map(|record| record.samples_per_second).sum()
    }

    /// The mean loss of the samples of the last second, by how many there were; none if there were none.
    pub(super) fn progress(&self) -> Option<Point> {
        let (mut weight, mut sum) = (0.0, 0.0);
        for record in self.here() {
            if let Some(loss) = record.loss.filter(|loss| loss.is_finite()) {
                weight += record.samples_per_second;
                sum += record.samples_per_second * loss;
            }
        }
        let loss = sum / weight;
        let samples = self.samples() as f64;
        loss.is_finite().then_some(Point { samples, loss })
    }

    fn here(&self) -> impl Iterator<Item = &StatsRecord> {
        self.iter().filter(|node| !node.silent).map(|node| &node.record)
    }
}
