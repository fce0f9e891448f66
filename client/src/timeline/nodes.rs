//! The newest record of every node, with growth rates and silence.

use std::collections::{BTreeMap, BTreeSet};

use protocol::stats::{FIGURES, Figure, NodeReport, Severity, StatsRecord};

use protocol::wire::control;

use super::entries::TimelineEntry;

/// Seconds without a record after which a node counts as silent, if others have sent records since. A silent node is
/// left out of means and of sums of speeds.
pub(crate) const SILENT: f64 = 5.0;

/// State of one node of the cluster: its newest record, figures derived from its records, and its entry in the list of
/// the cluster's members.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// Newest record of the node. Counters of a run stay when the node has left that run.
    pub(crate) record: StatsRecord,
    /// Growth per second of the node's figures that are shown as rates; absent before the second record and after a
    /// counter went back.
    rates: BTreeMap<&'static str, f64>,
    /// Seconds since the node's last record, if the node is silent.
    pub(crate) silent: Option<f64>,
    /// Text of the last warning or error that the node has reported.
    pub(crate) trouble: Option<String>,
    /// Entry of the node in the cluster's newest list of members.
    pub(crate) member: Option<NodeReport>,
}

impl Node {
    pub(crate) fn is_silent(&self) -> bool {
        // A node that was silent before the client connected has no record.
        let unheard = self.record.time == 0.0 && self.record.state == control::SILENT;
        self.silent.is_some() || unheard
    }

    /// Returns a figure as tables of nodes show it: its value, or its growth per second.
    pub(crate) fn figure(&self, figure: &Figure<StatsRecord>) -> Option<f64> {
        if figure.is_rate {
            self.rate(figure)
        } else {
            (figure.of)(&self.record)
        }
    }

    /// Returns the growth per second of a node's figure.
    pub(crate) fn rate(&self, figure: &Figure<StatsRecord>) -> Option<f64> {
        self.rates.get(figure.name).copied()
    }

    /// Returns the name of the node's state, such as `training` or `silent`.
    pub(crate) fn state(&self) -> &str {
        if self.is_silent() {
            control::SILENT
        } else {
            &self.record.state
        }
    }
}

/// All known nodes of a cluster, with their newest records.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    by_name: BTreeMap<String, Node>,
    /// Names of the nodes that sent a record in this run, including nodes that were dropped later.
    joined: BTreeSet<String>,
    /// Time of the newest record of any node, in seconds since 1970, by which silent nodes are found.
    newest: f64,
    /// Seconds without a record after which a node is silent.
    silence: f64,
}

impl Default for Nodes {
    fn default() -> Self {
        Self::with_silence(SILENT)
    }
}

impl Nodes {
    /// Creates an empty list of nodes, with this many seconds until a node is silent.
    pub(super) fn with_silence(silence: f64) -> Self {
        Self {
            by_name: BTreeMap::new(),
            joined: BTreeSet::new(),
            newest: 0.0,
            silence,
        }
    }

    /// Returns the nodes that the next run's timeline begins with: members of the cluster that are not silent, without
    /// their records.
    pub(super) fn of_next_run(&self) -> Self {
        let mut next = Self::default();
        let members = self.by_name.values().filter(|node| !node.is_silent());
        let members: Vec<NodeReport> = members.filter_map(|node| node.member.clone()).collect();
        next.take_members(&members, true);
        next.silence = self.silence;
        next
    }

    /// Takes a node's record, and returns events for nodes that are new, silent or back.
    pub(super) fn take(&mut self, record: &StatsRecord) -> Vec<TimelineEntry> {
        let known = self.by_name.get(&record.node).map_or(0.0, |node| node.record.time);
        if record.time < known {
            // The record was taken before.
            return Vec::new();
        }
        self.newest = self.newest.max(record.time);
        let name = || record.node.clone();
        let mut happened = Vec::new();
        let node = self.by_name.entry(name()).or_default();
        let is_new = node.record.time == 0.0;
        if is_new && self.joined.insert(name()) {
            happened.push(TimelineEntry::Joined { node: name() });
        } else if is_new || node.silent.take().is_some() {
            happened.push(TimelineEntry::Back { node: name() });
        }
        let silence = self.silence;
        let between = record.time - node.record.time;
        let rate = |figure: &Figure<StatsRecord>| {
            let growth = (figure.of)(record)? - (figure.of)(&node.record)?;
            let is_known = growth >= 0.0 && between > 0.0 && between <= silence;
            is_known.then_some((figure.name, growth / between))
        };
        node.rates = FIGURES
            .iter()
            .filter(|figure| figure.is_rate)
            .filter_map(rate)
            .collect();
        let grave = record.said.iter().rfind(|notice| notice.severity > Severity::News);
        if let Some(notice) = grave {
            node.trouble = Some(notice.text.to_string());
        }
        node.record = kept(&node.record, record);
        for (name, node) in &mut self.by_name {
            let unheard = self.newest - node.record.time;
            if node.record.time > 0.0 && unheard > self.silence && node.silent.replace(unheard).is_none() {
                happened.push(TimelineEntry::Silent { node: name.clone() });
            }
        }
        happened
    }

    /// Takes the list of the cluster's members, and drops nodes that are not on it. A node with records stays while its
    /// run is under way, and after the run until it is silent.
    pub(super) fn take_members(&mut self, members: &[NodeReport], under_way: bool) {
        for member in members {
            let node = self.by_name.entry(member.node.clone()).or_default();
            if node.record.time == 0.0 {
                node.record.node.clone_from(&member.node);
                node.record.state.clone_from(&member.state);
            }
            node.member = Some(member.clone());
        }
        let is_member = |name: &str| members.iter().any(|member| member.node == name);
        self.by_name.retain(|name, node| {
            let is_part = node.record.time > 0.0 && (under_way || !node.is_silent());
            is_part || is_member(name)
        });
    }

    /// Marks all nodes of a run that has ended as finished, except the nodes `missing`, which the run lost.
    pub(super) fn finish(&mut self, run: &str, missing: &[String]) {
        let nodes = self.by_name.iter_mut();
        let ended = nodes.filter(|(name, node)| node.record.run == run && !missing.contains(name));
        ended.for_each(|(_, node)| node.record.state = "finished".into());
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns all nodes in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.by_name.values()
    }

    /// Returns the figures that apply to at least one of these nodes, as columns for views.
    pub(crate) fn figures(&self) -> impl Iterator<Item = &'static Figure<StatsRecord>> {
        let applies =
            |figure: &Figure<StatsRecord>| self.iter().any(|node| figure.applies_to(&node.record, self.len() > 1));
        FIGURES.iter().filter(move |figure| applies(figure))
    }

    /// Returns the records of the nodes that are not silent.
    pub(crate) fn heard(&self) -> impl Iterator<Item = &StatsRecord> {
        let heard = self.iter().filter(|node| !node.is_silent());
        heard.map(|node| &node.record)
    }

    /// Returns the samples per second of all nodes that are not silent.
    pub(crate) fn samples_per_second(&self) -> f64 {
        self.heard().map(|record| record.samples_per_second).sum()
    }

    /// Returns the mean training loss of the last second, weighted by each node's samples per second; NaN if no samples
    /// were trained.
    pub(crate) fn loss(&self) -> f64 {
        let (mut weight, mut sum) = (0.0, 0.0);
        for record in self.heard() {
            if let Some(loss) = record.loss.filter(|loss| loss.is_finite()) {
                weight += record.samples_per_second;
                sum += record.samples_per_second * loss;
            }
        }
        sum / weight
    }

    /// Returns the mean of a figure over the nodes whose newest records have it, without silent nodes; `None` if no
    /// record has it.
    pub(crate) fn mean(&self, of: fn(&StatsRecord) -> Option<f64>) -> Option<f64> {
        let found: Vec<f64> = self.heard().filter_map(of).collect();
        (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
    }

    /// Returns the sum of a run's counter over all nodes, including silent ones.
    pub(crate) fn total(&self, of: fn(&StatsRecord) -> u64) -> u64 {
        self.iter().fold(0, |sum, node| of(&node.record).saturating_add(sum))
    }
}

/// Returns a node's new record, with figures of its run taken from the record before if the new one lacks them: a node
/// that stops exchanging weight changes in the run resets its counters, but views still show their last values.
fn kept(before: &StatsRecord, new: &StatsRecord) -> StatsRecord {
    let mut record = new.clone();
    if record.run == before.run && record.samples < before.samples {
        record.keep(before);
        record.digest.clone_from(&before.digest);
    }
    if record.run == before.run && record.accuracy.is_none() {
        (record.accuracy, record.mae) = (before.accuracy, before.mae);
    }
    record
}
