//! A run as it can be told: what its nodes' records, its state and the cluster's members add up to, in bounded space.
//!
//! It knows neither clock nor network: records bring their times along. Views draw it, and the journal keeps what happens.

mod curve;
mod entries;
mod facts;
mod nodes;
mod summary;

use std::collections::VecDeque;

use protocol::stats::measured::{Course, Evaluation};
use protocol::stats::{NodeReport, StatsRecord};
use protocol::wire::control::Phase;

pub(crate) use curve::{Curve, Point};
pub(crate) use entries::{Happened, TimelineEntry};
pub(crate) use facts::{End, Facts, missing};
use nodes::SILENT;
pub(crate) use nodes::{Node, Nodes};
pub(crate) use summary::Summary;

use entries::TimelineEntries;

/// Earlier runs that are remembered.
const RUNS_MAX: usize = 64;
/// Seconds between two points of the curve: fewer at the beginning of a run, when records come more often.
const POINT_EVERY: std::ops::RangeInclusive<f64> = 0.05..=1.0;

/// All that is known of a cluster and its newest run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    run: String,
    /// Earlier ones, of which some nodes still speak.
    runs_before: VecDeque<String>,
    facts: Option<Facts>,
    nodes: Nodes,
    curve: Curve,
    /// When the newest point was made.
    pointed: f64,
    /// The newest state of the run in which somebody told a training loss.
    latest: Option<Point>,
    /// When the first step was, in seconds since 1970.
    begun: Option<f64>,
    evaluations: Course,
    best: Option<f64>,
    entries: TimelineEntries,
    /// The most that anybody has told of.
    samples: u64,
    seconds: f64,
}

impl Timeline {
    /// Of records that come less often than every second.
    pub(crate) fn of_every(seconds: f64) -> Self {
        Self {
            nodes: Nodes::with_silence(SILENT.max(2.0 * seconds)),
            ..Self::default()
        }
    }

    /// Takes in records, each node's in the order in which they came. Tells what has happened by them.
    pub(crate) fn take(&mut self, records: &[StatsRecord]) -> Vec<Happened> {
        let mut happened = Vec::new();
        for record in records {
            if self.begins(record) {
                self.begin(&record.run);
            }
            if record.run.is_empty() || record.run == self.run {
                happened.extend(self.record(record));
            } else {
                // Who was not in this run still speaks of an earlier one.
                happened.extend(self.record(&without_run(record)));
            }
        }
        happened
    }

    /// Whether a record is the first word of another run. A node that does nothing may speak of any earlier one, and while the
    /// nodes that are asked are in a run there is no other.
    fn begins(&self, record: &StatsRecord) -> bool {
        let under_way = self.facts.as_ref().is_some_and(|facts| facts.end.is_none());
        let is_known = record.run.is_empty() || record.run == self.run || self.runs_before.contains(&record.run);
        !is_known && !under_way && record.state != Phase::Ended.text()
    }

    /// Another run begins: nothing of the last one counts any more, but for what has happened.
    fn begin(&mut self, run: &str) {
        let mut runs_before = std::mem::take(&mut self.runs_before);
        runs_before.retain(|before| before != run);
        runs_before.push_back(std::mem::take(&mut self.run));
        if runs_before.len() > RUNS_MAX {
            runs_before.pop_front();
        }
        let next = Self {
            run: run.into(),
            runs_before,
            nodes: self.nodes.of_next_run(),
            entries: std::mem::take(&mut self.entries),
            facts: self.facts.take().filter(|facts| facts.run == run),
            ..Self::default()
        };
        *self = next;
    }

    fn record(&mut self, record: &StatsRecord) -> Vec<Happened> {
        let mut what = self.nodes.take(record);
        let said = record.said.iter().cloned();
        what.extend(said.map(|notice| TimelineEntry::Said {
            node: record.node.clone(),
            notice,
        }));
        for evaluation in record.told_evaluations() {
            if !self.is_new(&evaluation) {
                continue;
            }
            self.evaluations.add(evaluation);
            self.best = Some(
                self.best
                    .map_or(evaluation.accuracy, |best| best.max(evaluation.accuracy)),
            );
        }
        self.samples = self.samples.max(record.ledger_samples);
        // Nodes have each begun a little earlier or later; a curve goes one way.
        if record.seconds > self.seconds {
            self.seconds = record.seconds;
        }
        let now = self.now();
        if now.loss.is_finite() {
            self.latest = Some(now);
        }
        let every = (self.seconds / 4.0).clamp(*POINT_EVERY.start(), *POINT_EVERY.end());
        if record.time >= self.pointed + every
            && let Some(point) = self.point()
        {
            self.pointed = record.time;
            self.begun = Some(record.time - point.seconds);
            self.curve.push(point);
        }
        what.into_iter()
            .map(|what| self.entries.add(record.time, what))
            .collect()
    }

    fn is_new(&self, evaluation: &Evaluation) -> bool {
        let newest = self.evaluations.evaluations().last();
        newest.is_none_or(|newest| newest.seconds < evaluation.seconds)
    }

    /// Where the run is now, while anybody trains.
    fn point(&self) -> Option<Point> {
        let newest = self.curve.points().last();
        if newest.is_some_and(|newest| newest.seconds >= self.seconds) || self.seconds == 0.0 {
            return None;
        }
        Some(self.now())
    }

    /// The last records come within a moment of each other, and the first of them may be of a node that trained nothing: what
    /// the others tell is one more point.
    fn end_curve(&mut self) {
        let Some(latest) = self.latest.take().filter(|latest| latest.seconds > 0.0) else {
            return;
        };
        let is_news = |newest: &Point| {
            latest.seconds > newest.seconds || latest.seconds == newest.seconds && newest.loss.is_nan()
        };
        if self.curve.points().last().is_none_or(is_news) {
            self.curve.push(latest);
        }
    }

    fn now(&self) -> Point {
        Point {
            seconds: self.seconds,
            samples: self.samples as f64,
            loss: self.nodes.loss(),
            samples_per_second: self.nodes.samples_per_second(),
            sent: self.nodes.total(|record| record.bytes_out) as f64,
            dense: self.nodes.total(|record| record.bytes_dense) as f64,
            staleness: self.nodes.mean(|record| Some(record.staleness)).unwrap_or(f64::NAN),
        }
    }

    /// Takes in what the run is and how far it has come, as it was told at this time. Tells what has happened by it.
    pub(crate) fn take_facts(&mut self, facts: Facts, time: f64) -> Vec<Happened> {
        if facts.run != self.run {
            // Who is asked may not have heard of the next run yet; but what it is in is what goes on.
            if facts.end.is_some() && !self.run.is_empty() {
                return Vec::new();
            }
            self.begin(&facts.run);
        }
        if facts.end.is_some() {
            self.end_curve();
        }
        let what = facts.since(self.facts.as_ref());
        self.facts = Some(facts);
        what.into_iter().map(|what| self.entries.add(time, what)).collect()
    }

    /// Nothing comes any more of a run that is over: whoever ended it has finished. Its result may have more evaluations than
    /// records told of, that of the last weights at least.
    pub(crate) fn close(&mut self, evaluations: &[Evaluation]) {
        self.end_curve();
        if !evaluations.is_empty() {
            self.evaluations = Course::default();
            for &one in evaluations {
                self.evaluations.add(one);
            }
        }
        if let Some(End::Finished { missing, .. }) = self.facts.as_ref().and_then(|facts| facts.end.as_ref()) {
            self.nodes.finish(&self.run, missing);
        }
    }

    /// Takes in who is in the cluster.
    pub(crate) fn take_members(&mut self, members: &[NodeReport]) {
        let under_way = self.facts.as_ref().is_some_and(|facts| facts.end.is_none());
        self.nodes.take_members(members, under_way);
    }

    /// Takes in something that no record tells.
    pub(crate) fn note(&mut self, time: f64, what: TimelineEntry) -> Happened {
        self.entries.add(time, what)
    }

    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    pub(crate) fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub(crate) fn curve(&self) -> &Curve {
        &self.curve
    }

    /// When the first step was, by the clock of records, in seconds since 1970.
    pub(crate) fn begun(&self) -> Option<f64> {
        self.begun
    }

    pub(crate) fn evaluations(&self) -> &[Evaluation] {
        self.evaluations.evaluations()
    }

    /// What happened after the one of this number, oldest first.
    pub(crate) fn happened_after(&self, number: u64) -> impl DoubleEndedIterator<Item = &Happened> {
        self.entries.after(number)
    }
}

/// What a record tells of a node, and not of its run.
fn without_run(record: &StatsRecord) -> StatsRecord {
    StatsRecord {
        node: record.node.clone(),
        state: record.state.clone(),
        time: record.time,
        cpu: record.cpu,
        memory_bytes: record.memory_bytes,
        said: record.said.clone(),
        ..StatsRecord::default()
    }
}

#[cfg(test)]
mod tests;
