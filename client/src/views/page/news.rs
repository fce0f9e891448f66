//! News for a page: everything that the page does not have yet.

use protocol::stats::measured::Evaluation;
use protocol::stats::{Figure, Severity, StatsRecord, Unit};
use serde::Serialize;

use super::documents::Outcome;
use crate::output::quantity;
use crate::timeline::{Facts, Happened, Node, Point, Summary, Timeline};

/// Data that an open page already has, and that the server's next answer need not contain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PageKnows {
    pub(super) generation: u32,
    pub(super) points: usize,
    /// Time of the newest evaluation that the page has, in seconds of the run.
    pub(super) evaluated: Option<f64>,
    /// Number of the newest event that the page has.
    pub(super) events: u64,
}

/// Answer of the server to an open page's request for news of the run.
#[derive(Serialize)]
pub(super) struct News<'a> {
    version: &'static str,
    /// Id of the process that serves the page: a page discards the data of another process.
    source: &'a str,
    run: &'a str,
    facts: Option<&'a Facts>,
    summary: Summary,
    /// Figures that are columns of the page's table of nodes.
    columns: Vec<PageColumn>,
    nodes: Vec<Row<'a>>,
    /// Time of the run's first step in seconds since 1970, by the same clock as the times of the events.
    begun: Option<f64>,
    /// Number that changes when points of the curve are merged; the page then discards its points. `points` are those
    /// after the first `points_from` points of the curve, which the page has already.
    generation: u32,
    points_from: usize,
    points: &'a [Point],
    evaluations: Vec<Evaluation>,
    events: Vec<PageEntry<'a>>,
    may_stop: bool,
    /// Reason for which the page gets no news, such as that no node answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
    /// Path at which the client that serves the page has saved the model, empty before that; `None` where a node serves
    /// the page.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// Position of the time slider on the page of an ended run; `None` for a live run, whose page has no slider.
    #[serde(skip_serializing_if = "Option::is_none")]
    past: Option<Past>,
    /// Settings and figures of an ended run, if its folder is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
}

/// An event of the run for the page, with its sentence and severity for people.
#[derive(Serialize)]
struct PageEntry<'a> {
    #[serde(flatten)]
    happened: &'a Happened,
    sentence: String,
    grave: Severity,
}

impl<'a> From<&'a Happened> for PageEntry<'a> {
    fn from(happened: &'a Happened) -> Self {
        Self {
            happened,
            sentence: happened.what.sentence(),
            grave: happened.what.severity(),
        }
    }
}

#[derive(Serialize)]
struct Past {
    /// Length of the run in seconds; `at` is the second that is shown.
    length: f64,
    at: f64,
}

/// A figure that is a column of the page's table of nodes.
#[derive(Serialize)]
struct PageColumn {
    title: Option<&'static str>,
    meaning: &'static str,
    unit: Unit,
    is_rate: bool,
    /// True if the page still shows this figure for a silent node.
    lasts: bool,
}

impl From<&&Figure<StatsRecord>> for PageColumn {
    fn from(figure: &&Figure<StatsRecord>) -> Self {
        Self {
            title: figure.title,
            meaning: figure.meaning,
            unit: figure.unit,
            is_rate: figure.is_rate,
            lasts: figure.lasts && !figure.is_rate,
        }
    }
}

/// A node as one row of the page's table.
#[derive(Serialize)]
struct Row<'a> {
    node: &'a str,
    state: &'a str,
    silent: Option<f64>,
    address: Option<&'a str>,
    device: Option<&'a str>,
    workers: Option<usize>,
    rtt_ms: Option<f64>,
    /// Values of a node's figures in the order of the table's columns.
    figures: Vec<Option<f64>>,
    trouble: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn of(node: &'a Node, columns: &[&'static Figure<StatsRecord>]) -> Self {
        let member = node.member.as_ref();
        Self {
            node: &node.record.node,
            state: node.state(),
            silent: node.silent,
            address: member.map(|member| &*member.address),
            device: member.map(|member| &*member.device),
            workers: member.map(|member| member.workers),
            rtt_ms: member.and_then(|member| member.rtt_ms),
            figures: columns.iter().map(|figure| node.figure(figure)).collect(),
            trouble: node.trouble.as_deref(),
        }
    }
}

impl<'a> News<'a> {
    /// Returns the answer to an open page's request for news of a live run: all data but those that the page has
    /// already (`known`).
    pub(super) fn live(
        source: &'a str,
        timeline: &'a Timeline,
        known: PageKnows,
        may_stop: bool,
        (trouble, model): (Option<String>, Option<String>),
    ) -> Self {
        Self {
            source,
            may_stop,
            trouble,
            model,
            ..Self::of(timeline, known)
        }
    }

    /// Returns the data with which a page shows an ended run as it was at one second.
    pub(super) fn past(timeline: &'a Timeline, outcome: Outcome, length: f64, at: f64) -> Self {
        Self {
            past: Some(Past {
                length,
                at: at.clamp(0.0, length),
            }),
            ..Self::whole(timeline, outcome)
        }
    }

    /// Returns all data with which a page or report shows an ended run, with its settings and figures.
    pub(super) fn whole(timeline: &'a Timeline, outcome: Outcome) -> Self {
        Self {
            outcome: Some(outcome),
            ..Self::of(timeline, PageKnows::default())
        }
    }

    /// Shortens the data of a report that is too large: drops the older half of the events and the last half of the
    /// nodes. Returns false if no events and nodes were left to drop.
    pub(super) fn halve(&mut self) -> bool {
        let is_empty = self.events.is_empty() && self.nodes.is_empty();
        self.events.drain(..self.events.len().div_ceil(2));
        self.nodes.truncate(self.nodes.len() / 2);
        self.trouble = Some(format!(
            "this page has the newest {} and {} only, because it would be too large with all of them",
            quantity::of(self.events.len(), "event"),
            quantity::of(self.nodes.len(), "node")
        ));
        !is_empty
    }

    fn of(timeline: &'a Timeline, known: PageKnows) -> Self {
        let curve = timeline.curve();
        let generation = curve.generation();
        let points_from = if known.generation == generation {
            known.points.min(curve.points().len())
        } else {
            0
        };
        let columns: Vec<_> = timeline.nodes().figures().filter(|figure| figure.on_page).collect();
        let is_new = |one: &&Evaluation| known.evaluated.is_none_or(|newest| one.seconds > newest);
        let evaluations = timeline.evaluations().iter().filter(is_new).cloned();
        Self {
            version: crate::version::VERSION,
            source: "",
            run: timeline.run(),
            facts: timeline.facts(),
            summary: timeline.summary(),
            columns: columns.iter().map(PageColumn::from).collect(),
            nodes: timeline.nodes().iter().map(|node| Row::of(node, &columns)).collect(),
            begun: timeline.begun(),
            generation,
            points_from,
            points: &curve.points()[points_from..],
            evaluations: evaluations.collect(),
            events: timeline.happened_after(known.events).map(PageEntry::from).collect(),
            may_stop: false,
            trouble: None,
            model: None,
            past: None,
            outcome: None,
        }
    }

    /// Returns this answer to a page's request as JSON.
    pub(super) fn text(&self) -> Vec<u8> {
        // Serialising these types does not fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(second: u32) -> StatsRecord {
        StatsRecord {
            node: "<b>a</b>".into(),
            run: "7".into(),
            state: "training".into(),
            time: f64::from(second),
            seconds: f64::from(second),
            ..StatsRecord::default()
        }
    }

    #[test]
    fn a_page_is_told_what_it_does_not_know() {
        let mut timeline = Timeline::default();
        for second in 1..=20 {
            timeline.take(&[record(second)]);
        }
        let told = |known| {
            let text = News::live("here", &timeline, known, true, (None, None)).text();
            let news: serde_json::Value = serde_json::from_slice(&text).unwrap();
            let many = |name: &str| news[name].as_array().unwrap().len();
            (many("points"), many("events"), many("nodes"))
        };
        assert_eq!(told(PageKnows::default()), (20, 1, 1));
        let known = PageKnows {
            points: 18,
            events: 1,
            ..PageKnows::default()
        };
        assert_eq!(told(known), (2, 0, 1));
        // Points of another generation are sent anew, and a page that claims to have too many gets none.
        assert_eq!(told(PageKnows { generation: 3, ..known }), (20, 0, 1));
        assert_eq!(told(PageKnows { points: 99, ..known }), (0, 0, 1));
    }

    #[test]
    fn the_table_of_nodes_has_the_figures_that_apply() {
        let columns = |record: StatsRecord| {
            let mut timeline = Timeline::default();
            timeline.take(&[record]);
            let text = News::live("here", &timeline, PageKnows::default(), true, (None, None)).text();
            let news: serde_json::Value = serde_json::from_slice(&text).unwrap();
            let columns = news["columns"].as_array().unwrap().clone();
            assert_eq!(news["nodes"][0]["figures"].as_array().unwrap().len(), columns.len());
            let titles = columns
                .iter()
                .map(|column| column["title"].as_str().unwrap().to_owned());
            titles.collect::<Vec<_>>()
        };
        let plain = columns(record(1));
        let in_rounds = columns(StatsRecord {
            round: 3,
            direction_share: 0.1,
            ..record(1)
        });
        let has = |titles: &[String], title: &str| titles.iter().any(|one| one == title);
        assert!(
            has(&plain, "waiting for rounds") && !has(&plain, "late rounds"),
            "{plain:?}"
        );
        for title in ["rounds", "late rounds", "bundled rounds", "orthogonal updates"] {
            assert!(has(&in_rounds, title), "{in_rounds:?}");
        }
        assert!(!has(&plain, "received"), "a node alone exchanges nothing");
    }
}
