//! The ledger: a node's own replica of the model as counts, with what it is the sum of.
//!
//! Counts are exact beyond where floats are, need no worker to be asked, and can be checked at any time: the digest
//! that the frontier implies must be the digest of the counts.

use std::collections::BTreeMap;

use protocol::bounded::COUNT_MAX;
use protocol::ids::{OriginId, RunId};
use protocol::log::batch::{Batch, Header};
use protocol::log::bundle::Bundle;
use protocol::log::cursor::Cursors;
use protocol::log::frontier::{Frontier, Position};
use protocol::log::merged_range::MergedRange;
use protocol::weights::digest::{Digest, flipped_bit};
use protocol::weights::lattice::{RANGE_ERROR_STEPS, Range, RangeError, weight_of};
use thiserror::Error;

use protocol::wire::run_plan::Resumed;
use protocol::wire::snapshot::{Applied, Head, Snapshot};

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is part of the ledger now.
    Applied(Range),
    /// It is part of the ledger now, and a weight left the range with it: the run is over, the same on every node.
    Diverged(RangeError),
    /// It was before; nothing changed.
    Duplicate,
    /// Batches of its origin are missing before it; nothing changed.
    Ahead { missing: u64 },
    /// The beginning of a range was applied before, and its end was not; nothing changed.
    Overlaps,
}

impl Outcome {
    /// Whether the batch has just become part of the ledger.
    #[must_use]
    pub fn is_applied(&self) -> bool {
        matches!(self, Self::Applied(_) | Self::Diverged(_))
    }
}

/// Why a batch is no part of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// The batch belongs to another run.
    #[error("the batch belongs to run {found}, not to run {expected}")]
    ForeignRun {
        /// This ledger's run.
        expected: RunId,
        found: RunId,
    },
    /// The run is over: a weight left the range before.
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// Why a snapshot is no ledger of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// It belongs to another run.
    #[error("the snapshot belongs to another run")]
    ForeignRun,
    /// Its counts are not what its batches add up to.
    #[error("the snapshot is damaged: its weights are not the sum of its batches")]
    Damaged,
}

/// A ledger's counts do not have the digest that its frontier implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the ledger is damaged: its weights have digest {found}, but the sum of its batches has digest {expected}")]
pub struct AuditError {
    /// What the batches add up to.
    pub expected: Digest,
    /// What the counts have.
    pub found: Digest,
}

/// One replica in integers.
#[derive(Clone, Debug)]
pub struct Ledger {
    run: RunId,
    counts: Vec<i32>,
    frontier: Frontier,
    cursors: Cursors,
    /// The digest before the first batch.
    initial: Digest,
    digest: Digest,
    /// What each origin's batches have added to it. Two replicas that stand at the same sequence of an origin have the
    /// same here, or one of them was told something else.
    digests: BTreeMap<OriginId, Digest>,
    samples: u64,
    /// A weight has left the range: nothing is applied any more, so that counts cannot run on for ever.
    diverged: bool,
}

impl Ledger {
    /// The ledger of a run before its first batch.
    #[must_use]
    pub fn new(run: RunId, counts: Vec<i32>) -> Self {
        let initial = Digest::of_counts(&counts);
        Self {
            initial,
            digest: initial,
            digests: BTreeMap::new(),
            frontier: Frontier::default(),
            cursors: Cursors::default(),
            samples: 0,
            diverged: false,
            run,
            counts,
        }
    }

    /// The ledger that a snapshot is of. `initial` is the digest of the run's first weights, which everybody knows.
    pub fn restored(snapshot: Snapshot, run: RunId, initial: Digest) -> Result<Self, SnapshotError> {
        let Snapshot { head, counts, .. } = snapshot;
        if head.run != run {
            return Err(SnapshotError::ForeignRun);
        }
        let digests: BTreeMap<OriginId, Digest> = head.applied.iter().map(|one| (one.origin, one.digest)).collect();
        let digest = digests.values().fold(initial, |sum, &digest| sum + digest);
        if Digest::of_counts(&counts) != digest {
            return Err(SnapshotError::Damaged);
        }
        let frontier = head.frontier();
        Ok(Self {
            diverged: is_out_of_range(&counts),
            run,
            counts,
            frontier,
            cursors: head.cursors,
            initial,
            digest,
            digests,
            samples: head.samples,
        })
    }

    /// All that another replica needs to go on from here.
    #[must_use]
    pub fn head(&self) -> Head {
        let applied = self.frontier.iter().map(|(origin, sequence)| Applied {
            origin,
            sequence,
            digest: self.digest_of(origin),
        });
        Head {
            run: self.run,
            applied: applied.collect(),
            cursors: self.cursors.clone(),
            samples: self.samples,
            weights: self.counts.len() as u64,
        }
    }

    /// What an origin's applied batches have added to the digest.
    #[must_use]
    pub fn digest_of(&self, origin: OriginId) -> Digest {
        self.digests.get(&origin).copied().unwrap_or_default()
    }

    /// The digest before the first batch.
    #[must_use]
    pub fn initial(&self) -> Digest {
        self.initial
    }

    /// Applies a batch if it is the next one of its origin. The batch is a decoded one, so it is valid in itself.
    ///
    /// A batch that pushes a weight out of the range is the last one that is applied; every later one is refused.
    pub fn apply(&mut self, batch: &Batch) -> Result<Outcome, LedgerError> {
        let Header {
            run, origin, sequence, ..
        } = batch.header;
        self.check(run)?;
        match self.frontier.position(origin, sequence) {
            Position::Duplicate => return Ok(Outcome::Duplicate),
            Position::Ahead { missing } => return Ok(Outcome::Ahead { missing }),
            Position::Next => {}
        }
        let range = batch.payload.apply_to_counts(&mut self.counts);
        let Header {
            digest,
            samples,
            ref cursors,
            ..
        } = batch.header;
        self.advance(origin, sequence, digest, u64::from(samples));
        self.cursors.extend(cursors.iter().copied());
        Ok(self.record_range(range))
    }

    /// Applies a range if its first batch is the next one of its origin. The range is a decoded one, so it is valid in
    /// itself.
    pub fn apply_range(&mut self, range: &MergedRange) -> Result<Outcome, LedgerError> {
        let header = &range.header;
        self.check(header.run)?;
        let applied = self.frontier.applied(header.origin);
        if header.to <= applied {
            return Ok(Outcome::Duplicate);
        }
        if header.from > applied {
            let missing = header.from - applied;
            return Ok(Outcome::Ahead { missing });
        }
        if header.from < applied {
            return Ok(Outcome::Overlaps);
        }
        let judgement = range.sums.apply_to_counts(&mut self.counts);
        self.advance(header.origin, header.to, header.digest, header.samples);
        self.cursors.merge(&header.cursors);
        Ok(self.record_range(judgement))
    }

    /// Applies a bundle of the next batches of its origins. The bundle is one whose digest was compared.
    pub fn apply_bundle(&mut self, bundle: &Bundle) -> Result<Outcome, LedgerError> {
        for header in &bundle.headers {
            self.check(header.run)?;
            match self.frontier.position(header.origin, header.sequence) {
                Position::Duplicate => return Ok(Outcome::Overlaps),
                Position::Ahead { missing } => return Ok(Outcome::Ahead { missing }),
                Position::Next => {}
            }
        }
        let range = bundle.dense.apply_to_counts(&mut self.counts);
        for header in &bundle.headers {
            let samples = u64::from(header.samples);
            self.advance(header.origin, header.sequence, header.digest, samples);
            self.cursors.extend(header.cursors.iter().copied());
        }
        Ok(self.record_range(range))
    }

    fn check(&self, run: RunId) -> Result<(), LedgerError> {
        if run != self.run {
            return Err(LedgerError::ForeignRun {
                expected: self.run,
                found: run,
            });
        }
        if self.diverged {
            return Err(RangeError.into());
        }
        Ok(())
    }

    fn advance(&mut self, origin: OriginId, sequence: u64, digest: Digest, samples: u64) {
        self.digest += digest;
        *self.digests.entry(origin).or_default() += digest;
        // Peers tell how many: a liar's numbers must not take the sum above what messages may say.
        self.samples = self.samples.saturating_add(samples).min(COUNT_MAX);
        self.frontier.raise(origin, sequence);
    }

    fn record_range(&mut self, range: Result<Range, RangeError>) -> Outcome {
        self.diverged = range.is_err();
        range.map_or_else(Outcome::Diverged, Outcome::Applied)
    }

    /// Recomputes the digest from the counts and compares it with what the batches add up to.
    pub fn audit(&self) -> Result<Digest, AuditError> {
        let found = Digest::of_counts(&self.counts);
        let expected = self.digest;
        if found == expected {
            Ok(found)
        } else {
            Err(AuditError { expected, found })
        }
    }

    /// Recomputes the digest, and puts right what can be without anybody's help: one bit that has flipped. Says which
    /// weight that was.
    pub fn mend(&mut self) -> Result<Option<usize>, AuditError> {
        let Err(error) = self.audit() else {
            return Ok(None);
        };
        let (index, count) = flipped_bit(&self.counts, self.digest).ok_or(error)?;
        self.counts[index] = count;
        // A range that was left for that reason was not.
        self.diverged = is_out_of_range(&self.counts);
        Ok(Some(index))
    }

    /// Whether a weight has left the range.
    #[must_use]
    pub fn is_diverged(&self) -> bool {
        self.diverged
    }

    /// The weights as floats.
    #[must_use]
    pub fn weights(&self) -> Vec<f32> {
        self.counts.iter().copied().map(weight_of).collect()
    }

    /// What a cosmic ray does.
    #[cfg(test)]
    pub(crate) fn flip(&mut self, index: usize, bit: u32) {
        self.counts[index] ^= 1 << bit;
    }

    /// The counts themselves.
    #[must_use]
    pub fn counts(&self) -> &[i32] {
        &self.counts
    }

    /// The samples that the applied batches were computed from; samples trained twice count twice.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Whether this is the ledger of the checkpoint that a run goes on from.
    #[must_use]
    pub fn is_that_of(&self, resumed: &Resumed) -> bool {
        let same_batches = self.frontier.fingerprint() == resumed.frontier;
        same_batches && self.samples == resumed.samples && self.digest == resumed.digest
    }

    /// The samples that were trained more than once.
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.samples.saturating_sub(self.cursors.samples_done())
    }

    /// The applied batches.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.frontier.iter().map(|(_, sequence)| sequence).sum()
    }

    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// How many weights there are.
    #[must_use]
    pub fn weight_count(&self) -> usize {
        self.counts.len()
    }

    /// The digest that the applied batches add up to.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// What was applied.
    #[must_use]
    pub fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// Which samples the applied batches were computed from.
    #[must_use]
    pub fn cursors(&self) -> &Cursors {
        &self.cursors
    }
}

fn is_out_of_range(counts: &[i32]) -> bool {
    counts
        .iter()
        .any(|count| count.unsigned_abs() >= RANGE_ERROR_STEPS as u32)
}

#[cfg(test)]
mod tests;
