//! Grouping of runs in a report: runs of one experiment that differ only in their seed are one group; groups that
//! differ only in their number of nodes are one series. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::row::{Measured, Row};
use super::statistics::{Summary, summary};

/// Characters of a run's id that are shown, enough to tell it from others.
const ID_LENGTH: usize = 8;
/// Longest label of a series of single runs, in characters; longer labels are replaced by the run's id.
const LABEL_MAX: usize = 48;

/// Runs of a study that differ only in their seed.
#[derive(Clone, Debug)]
pub(crate) struct Group<'a> {
    pub(crate) nodes: usize,
    /// Measurements of those runs of a group that can be compared, because no node was lost and the replicas agree.
    pub(crate) sound: Vec<&'a Measured>,
    /// Number of runs of a group that are excluded from averages, because they failed, lost a node or ended with
    /// different replicas.
    pub(crate) troubled: usize,
}

impl Group<'_> {
    /// Returns the values of one figure, selected by `of`, for those comparable runs of the group that have the figure.
    pub(crate) fn figures(&self, of: impl Fn(&Measured) -> Option<f64>) -> Vec<f64> {
        self.sound.iter().filter_map(|result| of(result)).collect()
    }

    pub(crate) fn summary(&self, of: impl Fn(&Measured) -> Option<f64>) -> Option<Summary> {
        summary(&self.figures(of))
    }
}

/// Groups of runs that differ only in their number of nodes, shown as one line of a chart, or as one row of a table per
/// number of nodes.
#[derive(Clone, Debug)]
pub(crate) struct Series<'a> {
    /// Label of a series of runs: the values of the job keys in which the series differ, or a run's id where those are
    /// too long for a legend.
    pub(crate) label: String,
    /// The series' values of those job keys in which series of runs differ, as text, if the label does not contain
    /// them.
    pub(crate) about: Option<String>,
    /// The series' values of those job keys in which series of runs differ, by key.
    pub(crate) keys: BTreeMap<&'a str, &'a str>,
    /// Groups of runs in ascending order of their number of nodes.
    pub(crate) groups: Vec<Group<'a>>,
}

impl<'a> Series<'a> {
    /// Returns the group of runs on this number of nodes.
    pub(crate) fn at(&self, nodes: usize) -> Option<&Group<'a>> {
        self.groups.iter().find(|group| group.nodes == nodes)
    }
}

/// Groups the records of one experiment's runs into series with equal settings but for nodes and seed, in the order of
/// their labels.
pub(crate) fn series_of<'a>(rows: &[&'a Row]) -> Vec<Series<'a>> {
    let varying = varying_keys(rows);
    let mut all: Vec<Series<'a>> = Vec::new();
    for row in rows {
        let keys: BTreeMap<&str, &str> = varying.iter().map(|&key| (key, row.key(key))).collect();
        let known = all.iter().position(|series| series.keys == keys);
        let at = known.unwrap_or_else(|| {
            let (label, about) = names(&keys, row, rows.len());
            all.push(Series {
                label,
                about,
                keys,
                groups: Vec::new(),
            });
            all.len() - 1
        });
        let groups = &mut all[at].groups;
        let known = groups.iter().position(|group| group.nodes == row.nodes);
        let at = known.unwrap_or_else(|| {
            groups.push(Group {
                nodes: row.nodes,
                sound: Vec::new(),
                troubled: 0,
            });
            groups.len() - 1
        });
        match row.sound() {
            Some(result) => groups[at].sound.push(result),
            None => groups[at].troubled += 1,
        }
    }
    all.sort_by(|one, other| one.label.cmp(&other.label));
    for series in &mut all {
        series.groups.sort_by_key(|group| group.nodes);
    }
    all
}

/// Returns all numbers of nodes in these series of runs, in ascending order.
pub(crate) fn node_counts(series: &[Series<'_>]) -> Vec<usize> {
    let all: BTreeSet<usize> = series
        .iter()
        .flat_map(|one| &one.groups)
        .map(|group| group.nodes)
        .collect();
    all.into_iter().collect()
}

/// Returns the job keys by which a report tells runs apart, because their values differ. The seed is not among them:
/// figures are averaged over runs with different seeds.
pub(crate) fn varying_keys<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let names: BTreeSet<&str> = rows.iter().flat_map(|row| row.job.keys()).map(String::as_str).collect();
    let differs = |name: &str| rows.iter().any(|row| row.key(name) != rows[0].key(name));
    let tells_apart = |name: &&str| *name != "seed" && differs(name) && !follows_exchange(rows, name);
    let mut keys: Vec<&str> = names.into_iter().filter(tells_apart).collect();
    // The keys that a report is mostly about come first.
    keys.sort_by_key(|key| (*key != "exchange", *key != "split"));
    keys
}

/// Returns true if this job key says nothing more than the strategy's name: only some strategies have the key, and it
/// has one value for each strategy.
fn follows_exchange(rows: &[&Row], name: &str) -> bool {
    let mut of = BTreeMap::new();
    let mut values = rows.iter().map(|row| (row.key("exchange"), row.key(name)));
    let is_the_same = values.all(|(exchange, value)| *of.entry(exchange).or_insert(value) == value);
    is_the_same && rows.iter().any(|row| row.key(name).is_empty())
}

/// Returns the label of a series of runs: the values of its `keys`, or for single runs of no study the run's id if
/// there is only one run or if the values are too long. Values that are too long are returned as the second text. `row`
/// is the record of the series' first run, and `rows` is the number of runs in all series.
fn names(keys: &BTreeMap<&str, &str>, row: &Row, rows: usize) -> (String, Option<String>) {
    let full = label(keys);
    // The rows of a study have no id: the study's author has chosen the keys that differ.
    let id: String = row.run.chars().take(ID_LENGTH).collect();
    if id.is_empty() {
        (full, None)
    } else if rows == 1 {
        (id, None)
    } else if full.chars().count() > LABEL_MAX {
        (id, Some(full))
    } else {
        (full, None)
    }
}

fn label(keys: &BTreeMap<&str, &str>) -> String {
    let mut names: Vec<&&str> = keys.keys().collect();
    names.sort_by_key(|key| (**key != "exchange", **key != "split"));
    let text = |key: &&str| match (*key, keys[*key]) {
        (key, "") => format!("without {key}"),
        // Values of these keys are understandable without the key's name.
        ("exchange" | "split" | "optimiser" | "data" | "model", value) => value.into(),
        (key, value) => format!("{key} {value}"),
    };
    let parts: Vec<String> = names.into_iter().map(text).collect();
    if parts.is_empty() {
        return "all runs".into();
    }
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    #[test]
    fn runs_are_grouped_by_what_differs() {
        let mut rows = [
            row("strom", 3, 1, 0.9, 2.0),
            row("strom", 3, 2, 0.8, 2.0),
            row("strom", 1, 1, 0.7, 4.0),
            row("ring", 3, 1, 0.6, 3.0),
            row("ring", 3, 2, 0.0, 3.0),
        ];
        rows[4].result.as_mut().unwrap().replicas_agree = false;
        let rows: Vec<&Row> = rows.iter().collect();
        let series = series_of(&rows);
        let labels: Vec<&str> = series.iter().map(|one| one.label.as_str()).collect();
        assert_eq!(labels, ["ring", "strom"]);
        assert_eq!(node_counts(&series), [1, 3]);
        let ring = series[0].at(3).unwrap();
        assert_eq!((ring.sound.len(), ring.troubled), (1, 1));
        let strom = series[1].at(3).unwrap().summary(|one| one.accuracy).unwrap();
        assert!((strom.mean - 0.85).abs() < 1e-12);
        assert!(series[0].at(1).is_none());
        assert_eq!(series_of(&rows[..2])[0].label, "all runs");
    }

    #[test]
    fn single_runs_are_called_by_what_differs_or_by_their_ids() {
        let named = |optimisers: [&str; 2]| {
            let mut rows = [row("strom", 3, 1, 0.9, 2.0), row("strom", 3, 1, 0.6, 3.0)];
            for ((row, optimiser), id) in rows
                .iter_mut()
                .zip(optimisers)
                .zip(["0123456789abcdef", "fedcba9876543210"])
            {
                row.job.insert("optimiser".into(), optimiser.into());
                row.run = id.into();
            }
            let series = series_of(&rows.iter().collect::<Vec<_>>());
            let names = series.into_iter().map(|one| (one.label, one.about));
            names.collect::<Vec<_>>()
        };
        assert_eq!(named(["adam", "muon"]), [("adam".into(), None), ("muon".into(), None)]);
        let long = "adamw:0.001,beta1=0.9,beta2=0.999,eps=0.00000001,weight_decay=0.01";
        assert_eq!(
            named([long, "muon"]),
            [("01234567".into(), Some(long.into())), ("muon".into(), None)]
        );
        let mut one = row("strom", 3, 1, 0.9, 2.0);
        one.run = "0123456789abcdef".into();
        assert_eq!(series_of(&[&one])[0].label, "01234567");
    }

    #[test]
    fn what_only_some_strategies_have_tells_nothing_apart_unless_it_differs() {
        let mut rows = [row("strom", 3, 1, 0.9, 2.0), row("ring", 3, 1, 0.6, 3.0)];
        rows[0].job.insert("density".into(), "auto".into());
        assert_eq!(varying_keys(&rows.iter().collect::<Vec<_>>()), ["exchange"]);
        let mut other = rows[0].clone();
        other.job.insert("density".into(), "0.1".into());
        let rows: Vec<&Row> = rows.iter().chain([&other]).collect();
        assert_eq!(varying_keys(&rows), ["exchange", "density"]);
    }
}
