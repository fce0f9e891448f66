//! Timeline: the bounded history of a run, built from records of its nodes, the run's state and the cluster's members.
//!
//! A timeline uses neither clock nor network: records carry their times. Views draw the timeline, and the journal
//! writes its events.

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

use crate::output::quality_metric::QualityMetric;
use entries::TimelineEntries;

/// Number of earlier runs whose ids a timeline remembers.
const RUNS_MAX: usize = 64;
/// Range of the seconds between two points of a run's curve: short at the start of a run, when records come more often.
const POINT_EVERY: std::ops::RangeInclusive<f64> = 0.05..=1.0;

/// Everything that a view knows of a cluster and its newest run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    run: String,
    /// Ids of earlier runs: late records of these runs do not make the timeline begin anew.
    runs_before: VecDeque<String>,
    facts: Option<Facts>,
    nodes: Nodes,
    curve: Curve,
    /// Time of the record at which the newest point was added to the curve, in seconds since 1970. The next point is
    /// not added until some time later.
    pointed: f64,
    /// Newest state of the run that has a training loss, as a point for the curve: it is added as the last point when
    /// the run ends, unless the curve has it already.
    latest: Option<Point>,
    /// Time of the run's first step, in seconds since 1970.
    begun: Option<f64>,
    evaluations: Course,
    best: Option<f64>,
    entries: TimelineEntries,
    /// Number of samples that the run has trained so far, the highest in any of its records; `seconds` is likewise its
    /// highest time.
    samples: u64,
    seconds: f64,
}

impl Timeline {
    /// Creates a timeline for records that come only every `seconds` seconds, as in the replay of a long run: no node
    /// counts as silent between two of its records.
    pub(crate) fn of_every(seconds: f64) -> Self {
        Self {
            nodes: Nodes::with_silence(SILENT.max(2.0 * seconds)),
            ..Self::default()
        }
    }

    /// Takes records of nodes, each node's in the order of their times, and returns the events that follow from them.
    pub(crate) fn take(&mut self, records: &[StatsRecord]) -> Vec<Happened> {
        let mut happened = Vec::new();
        for record in records {
            if self.begins(record) {
                self.begin(&record.run);
            }
            if record.run.is_empty() || record.run == self.run {
                happened.extend(self.record(record));
            } else {
                // The node takes no part in this run and still reports an earlier one.
                happened.extend(self.record(&without_run(record)));
            }
        }
        happened
    }

    /// Returns true if a record shows that a new run has begun: the record's run is neither known nor ended, and the
    /// run that the timeline shows is no longer under way. An idle node may still report any earlier run.
    fn begins(&self, record: &StatsRecord) -> bool {
        let under_way = self.facts.as_ref().is_some_and(|facts| facts.end.is_none());
        let is_known = record.run.is_empty() || record.run == self.run || self.runs_before.contains(&record.run);
        !is_known && !under_way && record.state != Phase::Ended.text()
    }

    /// Resets the timeline for a new run, but keeps its list of events.
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
            if !self.is_new(evaluation) {
                continue;
            }
            self.evaluations.add(evaluation.clone());
            let (metric, figure) = QualityMetric::of(evaluation.accuracy, evaluation.mae, Some(evaluation.loss));
            self.best = figure.map(|figure| self.best.map_or(figure, |best| metric.better(best, figure)));
        }
        self.samples = self.samples.max(record.ledger_samples);
        // Nodes begin at slightly different times; the curve must not go back.
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

    /// Returns the next point of the run's curve, if the run has advanced since the last one.
    fn point(&self) -> Option<Point> {
        let newest = self.curve.points().last();
        if newest.is_some_and(|newest| newest.seconds >= self.seconds) || self.seconds == 0.0 {
            return None;
        }
        Some(self.now())
    }

    /// Adds the run's last state to its curve, if the curve lacks it. The nodes' last records come so close together
    /// that only the first one can give an ordinary point, and the node that sent it may have trained nothing.
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

    /// Takes a newer description of the run (settings, phase, waiting, end) as of `time`, and returns the events that
    /// follow from it.
    pub(crate) fn take_facts(&mut self, facts: Facts, time: f64) -> Vec<Happened> {
        if facts.run != self.run {
            // The asked node may not know the next run yet, so an ended run does not replace the present one. A run
            // that is under way does.
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

    /// Completes the timeline of a run that has ended on all nodes. `evaluations`, which come from the run's result,
    /// replace those that were collected from records: no record carries the evaluation of the final weights.
    pub(crate) fn close(&mut self, evaluations: &[Evaluation]) {
        self.end_curve();
        if !evaluations.is_empty() {
            self.evaluations = Course::default();
            for one in evaluations {
                self.evaluations.add(one.clone());
            }
        }
        if let Some(End::Finished { missing, .. }) = self.facts.as_ref().and_then(|facts| facts.end.as_ref()) {
            self.nodes.finish(&self.run, missing);
        }
    }

    /// Takes the list of the cluster's members, which adds and drops nodes.
    pub(crate) fn take_members(&mut self, members: &[NodeReport]) {
        let under_way = self.facts.as_ref().is_some_and(|facts| facts.end.is_none());
        self.nodes.take_members(members, under_way);
    }

    /// Adds an event to the timeline that no record carries, such as a request to stop, and returns it with its number.
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

    /// Returns the time of the run's first step in seconds since 1970, by the same clock as the times of the run's
    /// records.
    pub(crate) fn begun(&self) -> Option<f64> {
        self.begun
    }

    pub(crate) fn evaluations(&self) -> &[Evaluation] {
        self.evaluations.evaluations()
    }

    /// Returns the run's events after the one with this number, oldest first.
    pub(crate) fn happened_after(&self, number: u64) -> impl DoubleEndedIterator<Item = &Happened> {
        self.entries.after(number)
    }
}

/// Returns a copy of a node's record without the figures of a run, for a node that takes no part in the present run and
/// still reports those of an earlier one.
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
