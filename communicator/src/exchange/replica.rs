//! The node's replica of the model: the ledger together with the log of its batches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::ids::OriginId;
use protocol::log::batch::Batch;
use protocol::log::bundle::Bundle;
use protocol::log::frontier::{Frontier, SequenceRange};
use protocol::log::merged_range::MergedRange;
use protocol::weights::sums::{Adder, Sums};
use protocol::wire::attach::JumpOrder;
use protocol::wire::snapshot::{self, Encoded, LogEntry};

use super::breach::Breach;
use super::bundle_check::{BundleCheck, rest_of};
use super::event::Jump;
use super::log::Log;
use super::origins::Origins;
use crate::ledger::{AuditError, Ledger, LedgerError, Outcome};
use crate::planted::{Bug, planted};

/// This node's replica of the model (the ledger), and the log of those of its batches that some member may still need.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    ledger: Ledger,
    log: Log,
}

/// Another node's replica, decoded from a snapshot.
pub(super) struct Snapshot {
    ledger: Ledger,
    log: Vec<LogEntry>,
}

impl Replica {
    /// Makes a replica from a ledger (the weights and the names of the batches in them), with an empty log.
    pub(super) fn new(ledger: Ledger) -> Self {
        Self {
            log: Log::new(ledger.run(), ledger.weight_count()),
            ledger,
        }
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    pub(super) fn frontier(&self) -> &Frontier {
        self.ledger.frontier()
    }

    pub(super) fn weights(&self) -> usize {
        self.ledger.weight_count()
    }

    /// Drops batches up to these sequences, which no member needs, from the log.
    pub(super) fn trim(&mut self, needless: &Frontier) {
        self.log.trim(needless);
    }

    /// Merges a worker's entries in the log into ranges that do not span these sequences, because a member may have the
    /// batches just up to there. The newest `recent` batches stay single.
    pub(super) fn compact(&mut self, origin: OriginId, points: &BTreeSet<u64>, recent: u64) {
        self.log.compact(origin, points, recent);
    }

    /// Applies a batch to this replica's weights and appends its encoded bytes to the log.
    pub(super) fn apply(&mut self, batch: &Batch, bytes: &Arc<[u8]>) -> Result<Outcome, LedgerError> {
        let outcome = self.ledger.apply(batch)?;
        if outcome.is_applied() {
            self.log
                .append(batch.header.origin, batch.header.sequence, Arc::clone(bytes));
        }
        Ok(outcome)
    }

    /// Applies a merged range to this replica's weights and appends it to the log.
    pub(super) fn apply_range(&mut self, range: &MergedRange) -> Result<Outcome, LedgerError> {
        let outcome = self.ledger.apply_range(range)?;
        if outcome.is_applied() {
            self.log.append_range(range);
        }
        Ok(outcome)
    }

    /// Returns the part of a merged range that this replica has not applied, by subtraction of the log's batches from
    /// it. Returns `None` if the log has merged the beginning away, so that nothing can be subtracted.
    pub(super) fn without_applied(&self, mut range: MergedRange) -> Option<MergedRange> {
        let (origin, start, to) = (range.header.origin, range.header.from, range.header.to);
        let applied = self.frontier().applied(origin);
        if !(start < applied && applied < to) {
            return Some(range);
        }
        if planted(Bug::WrongMerge) {
            range.header.from = applied;
            return Some(range);
        }
        let known = self.log.merged(origin, start, applied)?;
        range.after(&known, self.weights())
    }

    /// Compares a bundle (the sum of one batch from each of several workers) with the batches that this replica has.
    pub(super) fn check_bundle(&self, bundle: Bundle) -> BundleCheck {
        rest_of(bundle, &self.ledger, &[&self.log])
    }

    /// Applies a checked bundle (a sum of several workers' batches) to this replica's weights and appends it to the
    /// log. Returns the outcome with the encoded bundle, or `None` if the bundle could not be applied.
    pub(super) fn apply_bundle(&mut self, bundle: &mut Bundle) -> Option<(Outcome, Arc<[u8]>)> {
        let bytes: Arc<[u8]> = bundle.encode()?.into();
        if bundle.headers.len() > 1 && planted(Bug::ForgottenOrigin) {
            bundle.headers.pop();
        }
        let outcome = self.ledger.apply_bundle(bundle).ok()?;
        outcome.is_applied().then(|| {
            self.log.append_bundle(bundle, &bytes);
            (outcome, bytes)
        })
    }

    /// Compares the replica's weights with the sum of its batches. Repairs one flipped bit and returns the index of its
    /// weight; fails if the damage is larger.
    pub(super) fn mend(&mut self) -> Result<Option<usize>, AuditError> {
        self.ledger.mend()
    }

    /// Encodes a snapshot for a peer that has the batches `has`: the whole replica, and the log of the batches that the
    /// peer lacks.
    pub(super) fn snapshot_for(&self, has: &Frontier) -> Encoded {
        let lacking = has.lacks(self.frontier());
        let log = lacking.iter().flat_map(|range| self.log.entries(range.origin));
        let log: Vec<LogEntry> = log.cloned().collect();
        snapshot::encode(self.ledger.head(), self.ledger.counts().into(), &log)
    }

    /// Decodes a peer's snapshot. Fails if no honest member would send it.
    pub(super) fn read_snapshot(&self, bytes: &[u8], origins: &Origins) -> Result<Snapshot, Breach> {
        let mut snapshot = snapshot::decode(bytes, self.weights()).ok_or(Breach::UnreadableSnapshot)?;
        let log = std::mem::take(&mut snapshot.log);
        let ledger = Ledger::restored(snapshot, self.ledger.run(), self.ledger.initial())?;
        for (origin, sequence) in ledger.frontier().iter() {
            if origins.node_of(origin).is_none() {
                return Err(Breach::UnknownOriginInSnapshot(origin));
            }
            let (theirs, ours) = (ledger.digest_of(origin), self.ledger.digest_of(origin));
            if self.frontier().applied(origin) == sequence && theirs != ours {
                return Err(Breach::OtherBatchesInSnapshot(origin));
            }
        }
        Ok(Snapshot { ledger, log })
    }

    /// Adds to a peer's snapshot the batches of this replica that it lacks. Returns `None` if this node's log no longer
    /// holds them so that they can be added. The snapshot's own log tells which parts of bundles (sums of several
    /// workers' batches) it already has.
    pub(super) fn with_own(&self, snapshot: Snapshot) -> Option<Snapshot> {
        let Snapshot { mut ledger, log } = snapshot;
        let mut theirs = Log::new(ledger.run(), ledger.weight_count());
        for (origin, entries) in by_origin(log.clone()) {
            let to = ledger.frontier().applied(origin);
            theirs.adopt(origin, to, entries.into_iter());
        }
        loop {
            let lacking = ledger.frontier().lacks(self.frontier());
            if lacking.is_empty() {
                return Some(Snapshot { ledger, log });
            }
            let before = ledger.frontier().clone();
            for range in lacking {
                self.add_own(range, &mut ledger, &theirs)?;
            }
            // Bundles may wait for each other's predecessors, but not in a circle.
            if *ledger.frontier() == before {
                return None;
            }
        }
    }

    /// Adds the next batches of one worker to another node's replica: either those up to the next bundle (a sum of
    /// several workers' batches), or that bundle. Returns `None` if this is impossible.
    fn add_own(&self, range: SequenceRange, ledger: &mut Ledger, theirs: &Log) -> Option<()> {
        let SequenceRange { origin, from, to } = range;
        if ledger.frontier().applied(origin) != from {
            // A bundle that another origin's turn has added contained these batches.
            return Some(());
        }
        let outcome = if self.log.bundled_after(origin, from).is_some() {
            let entry = self.log.after(origin, from)?;
            let bundle = Bundle::decode(&entry.bytes, ledger.weight_count()).ok()?;
            match rest_of(bundle, ledger, &[&self.log, theirs]) {
                BundleCheck::New(rest) => ledger.apply_bundle(&rest),
                BundleCheck::Later => return Some(()),
                BundleCheck::Cannot => return None,
            }
        } else {
            let to = self.log.bundle_from(origin, from).map_or(to, |bundle| bundle.min(to));
            ledger.apply_range(&self.log.merged(origin, from, to)?)
        };
        matches!(outcome, Ok(Outcome::Applied(_))).then_some(())
    }

    /// Replaces this replica by a snapshot that includes all of its batches. Returns the difference by which workers
    /// move their weights to follow, or `None` if it is unknown. If the old weights are `damaged`, the difference is
    /// computed from the log, otherwise from the weights.
    pub(super) fn replace(&mut self, snapshot: Snapshot, damaged: bool) -> Option<Jump> {
        let before = std::mem::replace(&mut self.ledger, snapshot.ledger);
        let mut theirs = by_origin(snapshot.log);
        for news in before.frontier().lacks(self.ledger.frontier()) {
            let theirs = theirs.remove(&news.origin).unwrap_or_default();
            self.log.adopt(news.origin, news.to, theirs.into_iter());
        }
        let sums = if damaged {
            self.news_since(&before)
        } else {
            Sums::between(before.counts(), self.ledger.counts())
        };
        let order = JumpOrder {
            origin: None,
            batches: self.ledger.batches() - before.batches(),
            samples: self.ledger.samples().saturating_sub(before.samples()),
            cursors: self.ledger.cursors().clone(),
        };
        Some(Jump { sums: sums?, order })
    }

    /// Returns the sum of the batches in this log that another replica lacks; `None` if the log does not hold them all.
    fn news_since(&self, before: &Ledger) -> Option<Sums> {
        let mut sums = Adder::new(self.weights());
        for news in before.frontier().lacks(self.frontier()) {
            sums.add_sums(&self.log.merged(news.origin, news.from, news.to)?.sums);
        }
        sums.finish()
    }

    /// Returns true if a ledger could replace this replica without the loss of a batch.
    #[cfg(test)]
    pub(super) fn is_replaceable_by(&self, ledger: Ledger) -> bool {
        let log = Vec::new();
        self.with_own(Snapshot { ledger, log }).is_some()
    }

    /// Flips a bit of a weight, for tests of audits and repairs.
    #[cfg(test)]
    pub(super) fn flip(&mut self, index: usize, bit: u32) {
        self.ledger.flip(index, bit);
    }

    /// Flips a bit of a batch in the log, for tests of damaged logs.
    #[cfg(test)]
    pub(super) fn spoil(&mut self, origin: OriginId, sequence: u64) {
        self.log.spoil(origin, sequence);
    }
}

impl Snapshot {
    pub(super) fn frontier(&self) -> &Frontier {
        self.ledger.frontier()
    }
}

/// Groups a log's entries by origin (a worker's stream of batches).
fn by_origin(log: Vec<LogEntry>) -> BTreeMap<OriginId, Vec<LogEntry>> {
    let mut entries: BTreeMap<OriginId, Vec<LogEntry>> = BTreeMap::new();
    for entry in log {
        entries.entry(entry.origin).or_default().push(entry);
    }
    entries
}
