//! The newest word of every node.

use std::collections::{BTreeMap, BTreeSet};

use protocol::stats::{FIGURES, Figure, NodeReport, Severity, StatsRecord};

use protocol::wire::control;

use super::entries::TimelineEntry;

/// Who was not heard of for so many seconds, while others were, is silent: it is in no mean and in no sum of speeds.
pub(crate) const SILENT: f64 = 5.0;

/// A node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// Its newest record. What it had counted stays when it has left the run.
    pub(crate) record: StatsRecord,
    /// Growth per second of the figures that are shown so; none before the second record and after a counter went back.
    rates: BTreeMap<&'static str, f64>,
    /// Seconds without a word of it, if they are enough to call it silent.
    pub(crate) silent: Option<f64>,
    /// The last warning or error that it has told of.
    pub(crate) trouble: Option<String>,
    /// What the cluster's members know of it.
    pub(crate) member: Option<NodeReport>,
}

impl Node {
    pub(crate) fn is_silent(&self) -> bool {
        // Of who was silent before there are no records.
        let unheard = self.record.time == 0.0 && self.record.state == control::SILENT;
        self.silent.is_some() || unheard
    }

    /// A figure as tables of nodes have it: its value, or its growth per second.
    pub(crate) fn figure(&self, figure: &Figure<StatsRecord>) -> Option<f64> {
        if figure.is_rate {
            self.rate(figure)
        } else {
            (figure.of)(&self.record)
        }
    }

    /// A figure's growth per second.
    pub(crate) fn rate(&self, figure: &Figure<StatsRecord>) -> Option<f64> {
        self.rates.get(figure.name).copied()
    }

    /// What it does, in a word.
    pub(crate) fn state(&self) -> &str {
        if self.is_silent() {
            control::SILENT
        } else {
            &self.record.state
        }
    }
}

/// All nodes that are known.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    by_name: BTreeMap<String, Node>,
    /// Those that were heard in this run, also if they were dropped after it.
    joined: BTreeSet<String>,
    /// The time of the newest record of any.
    newest: f64,
    /// Seconds after which who says nothing is silent.
    silence: f64,
}

impl Default for Nodes {
    fn default() -> Self {
        Self::with_silence(SILENT)
    }
}

impl Nodes {
    /// None yet, of whom each speaks more often than this.
    pub(super) fn with_silence(silence: f64) -> Self {
        Self {
            by_name: BTreeMap::new(),
            joined: BTreeSet::new(),
            newest: 0.0,
            silence,
        }
    }

    /// Those that are there. None has spoken of the next run yet.
    pub(super) fn of_next_run(&self) -> Self {
        let mut next = Self::default();
        let members = self.by_name.values().filter(|node| !node.is_silent());
        let members: Vec<NodeReport> = members.filter_map(|node| node.member.clone()).collect();
        next.take_members(&members, true);
        next.silence = self.silence;
        next
    }

    /// Takes in a record. Tells who was not known, has fallen silent or is back.
    pub(super) fn take(&mut self, record: &StatsRecord) -> Vec<TimelineEntry> {
        let known = self.by_name.get(&record.node).map_or(0.0, |node| node.record.time);
        if record.time < known {
            // It was told before.
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

    /// Takes in who is in the cluster. Who was in a run that goes on stays, whatever became of it.
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

    /// A run has finished on all that took part in it and are not missing.
    pub(super) fn finish(&mut self, run: &str, missing: &[String]) {
        let nodes = self.by_name.iter_mut();
        let ended = nodes.filter(|(name, node)| node.record.run == run && !missing.contains(name));
        ended.for_each(|(_, node)| node.record.state = "finished".into());
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// By name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.by_name.values()
    }

    /// The figures that say something about any of these nodes.
    pub(crate) fn figures(&self) -> impl Iterator<Item = &'static Figure<StatsRecord>> {
        let applies =
            |figure: &Figure<StatsRecord>| self.iter().any(|node| figure.applies_to(&node.record, self.len() > 1));
        FIGURES.iter().filter(move |figure| applies(figure))
    }

    /// Those that are heard.
    pub(crate) fn heard(&self) -> impl Iterator<Item = &StatsRecord> {
        let heard = self.iter().filter(|node| !node.is_silent());
        heard.map(|node| &node.record)
    }

    /// Samples per second of those that are heard.
    pub(crate) fn samples_per_second(&self) -> f64 {
        self.heard().map(|record| record.samples_per_second).sum()
    }

    /// The mean loss of the samples of the last second, by how many there were; no number if there were none.
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

    /// A mean over those that are heard and know it.
    pub(crate) fn mean(&self, of: fn(&StatsRecord) -> Option<f64>) -> Option<f64> {
        let found: Vec<f64> = self.heard().filter_map(of).collect();
        (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
    }

    /// A sum over all, those that are gone included.
    pub(crate) fn total(&self, of: fn(&StatsRecord) -> u64) -> u64 {
        self.iter().fold(0, |sum, node| of(&node.record).saturating_add(sum))
    }
}

/// A new record. Who has left the exchange of a run counts nothing any more: what it had counted stays.
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
