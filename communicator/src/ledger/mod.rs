//! The ledger: a node's own replica of the model, with each weight as an integer count, and the names of the batches
//! that it is the sum of.
//!
//! Counts stay exact where floats do not, are available without asking a worker, and can be checked at any time: the
//! digest of the counts must be the digest that the frontier implies.

use std::collections::BTreeMap;

use protocol::bounded::COUNT_MAX;
use protocol::ids::{NodeId, OriginId, RunId};
use protocol::log::batch::{Batch, Header};
use protocol::log::bundle::Bundle;
use protocol::log::cursor::Cursors;
use protocol::log::frontier::{Frontier, Position};
use protocol::log::merged_range::MergedRange;
use protocol::weights::digest::{Digest, flipped_bit};
use protocol::weights::lattice::{RANGE_ERROR_STEPS, Range, RangeError, weight_of};
use thiserror::Error;

use protocol::wire::run_plan::{Resumed, RunPlan};
use protocol::wire::snapshot::{Applied, Head, Snapshot};

/// The result of applying a batch, or a sum of batches, to a ledger (a node's replica).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The batch, or sum of batches, has been added to the replica. The range says if a weight has come near the limit
    /// at which a run has diverged.
    Applied(Range),
    /// The batch, or sum of batches, has been added to the replica, and a weight has left the range that weights may
    /// have (between −16 and 16): the run has diverged, on every node alike.
    Diverged(RangeError),
    /// The batch, or sum of batches, was in the replica already; nothing changed.
    Duplicate,
    /// The batch is not the next one of its worker: the replica lacks this number of batches before it. Nothing
    /// changed.
    Ahead { missing: u64 },
    /// The replica already contains some of the batches that a sum holds, but not all; nothing changed.
    Overlaps,
}

impl Outcome {
    /// Returns true if a batch was new to the replica and has been applied to it.
    #[must_use]
    pub fn is_applied(&self) -> bool {
        matches!(self, Self::Applied(_) | Self::Diverged(_))
    }
}

/// The reason for which a ledger (a node's replica) refuses a batch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// The batch belongs to another run.
    #[error("the batch belongs to run {found}, not to run {expected}")]
    ForeignRun {
        /// The run that the ledger (a node's replica) belongs to.
        expected: RunId,
        found: RunId,
    },
    /// A weight left the range that weights may have (between −16 and 16) earlier: the run has diverged, and no further
    /// batch is taken.
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// The reason for which a snapshot is not usable as a replica of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SnapshotError {
    /// The snapshot belongs to another run.
    #[error("the snapshot belongs to another run")]
    ForeignRun,
    /// The snapshot's weights are not the sum of its batches.
    #[error("the snapshot is damaged: its weights are not the sum of its batches")]
    Damaged,
}

/// The error that a replica's weights are not the sum of its batches, as their digests show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the ledger is damaged: its weights have digest {found}, but the sum of its batches has digest {expected}")]
pub struct AuditError {
    /// The digest that the weights should have, by the digests of the batches.
    pub expected: Digest,
    /// The digest that the replica's weights have.
    pub found: Digest,
}

/// One replica of the model in integers. It is the sum of exactly the batches that its frontier names (for each worker,
/// all up to one sequence number).
#[derive(Clone, Debug)]
pub struct Ledger {
    run: RunId,
    counts: Vec<i32>,
    frontier: Frontier,
    cursors: Cursors,
    /// The digest of the run's first weights, also at a node that drew other ones: its `counts` are its own weights
    /// until a snapshot replaces them.
    initial: Digest,
    /// The digest of `counts`.
    digest: Digest,
    /// For each origin (a worker's stream of batches), the sum of the batches' digests. Two replicas with equally many
    /// batches of an origin have the same sum here, unless they got different batches.
    digests: BTreeMap<OriginId, Digest>,
    samples: u64,
    /// True once a weight has left the range that weights may have (between −16 and 16). No further batch is applied
    /// then, so that weights cannot grow without bound.
    diverged: bool,
}

impl Ledger {
    /// Makes a node's replica of a run before the first batch, from the first weights.
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

    /// Returns the replica with which node `me` begins a run, made from the one with which it offered to take part. In
    /// a run over pipelines, that is the replica of the node's stage. If nodes draw the first weights by themselves,
    /// the replica gets the digest of the run's first weights. Its own weights may differ from those: then they are a
    /// placeholder until a checkpoint or a snapshot, which is checked against that digest, replaces them.
    #[must_use]
    pub(crate) fn at_beginning(self, plan: &RunPlan, me: NodeId) -> Self {
        if let Some(stage) = plan.topology().held_stage(me) {
            return Self::new(self.run, stage.initial_counts(plan.job.seed));
        }
        let initial = if plan.job.nodes_draw_weights() {
            plan.first
        } else {
            self.initial
        };
        Self { initial, ..self }
    }

    /// Restores a replica from a snapshot after checking the snapshot's digest. `initial` is the digest of the run's
    /// first weights, which every member knows.
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

    /// Returns the replica without its weights: the frontier (applied batches), cursors (trained samples) and digests
    /// with which another node can continue.
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

    /// The sum of the digests of the applied batches of one origin (a worker's stream of batches).
    #[must_use]
    pub fn digest_of(&self, origin: OriginId) -> Digest {
        self.digests.get(&origin).copied().unwrap_or_default()
    }

    /// The digest of the run's first weights.
    #[must_use]
    pub fn initial(&self) -> Digest {
        self.initial
    }

    /// Applies a batch if it is the next one of its worker. The batch must have been decoded, which checks it.
    ///
    /// A batch that takes a weight out of its range (between −16 and 16) is the last one applied; later ones are
    /// refused.
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

    /// Applies a merged range if its first batch is the next one of its worker. The range must have been decoded, which
    /// checks it.
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

    /// Applies a bundle (the sum of one batch from each of several workers) if each batch is the next one of its
    /// worker. The caller must have compared the bundle's digest.
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
        // The number comes from peers: a dishonest one must not take the sum above the maximum in messages.
        self.samples = self.samples.saturating_add(samples).min(COUNT_MAX);
        self.frontier.raise(origin, sequence);
    }

    fn record_range(&mut self, range: Result<Range, RangeError>) -> Outcome {
        self.diverged = range.is_err();
        range.map_or_else(Outcome::Diverged, Outcome::Applied)
    }

    /// Checks that the weights are the sum of the applied batches: recomputes their digest and compares it with the
    /// digest that follows from the batches.
    pub fn audit(&self) -> Result<Digest, AuditError> {
        let found = Digest::of_counts(&self.counts);
        let expected = self.digest;
        if found == expected {
            Ok(found)
        } else {
            Err(AuditError { expected, found })
        }
    }

    /// Checks that the weights are the sum of the applied batches, and repairs them if a single bit has flipped.
    /// Returns the index of the repaired weight; fails if the damage is larger.
    pub fn mend(&mut self) -> Result<Option<usize>, AuditError> {
        let Err(error) = self.audit() else {
            return Ok(None);
        };
        let (index, count) = flipped_bit(&self.counts, self.digest).ok_or(error)?;
        self.counts[index] = count;
        // The weight may have left the range because of the flipped bit only.
        self.diverged = is_out_of_range(&self.counts);
        Ok(Some(index))
    }

    /// Returns true if a weight has left the range that weights may have (between −16 and 16), so that no further batch
    /// is applied.
    #[must_use]
    pub fn is_diverged(&self) -> bool {
        self.diverged
    }

    /// The weights as floats.
    #[must_use]
    pub fn weights(&self) -> Vec<f32> {
        self.counts.iter().copied().map(weight_of).collect()
    }

    /// Flips a bit of a weight, as a cosmic ray would.
    #[cfg(test)]
    pub(crate) fn flip(&mut self, index: usize, bit: u32) {
        self.counts[index] ^= 1 << bit;
    }

    /// The weights as integers: multiples of 2⁻²⁰, the step between two neighbouring values of a weight.
    #[must_use]
    pub fn counts(&self) -> &[i32] {
        &self.counts
    }

    /// Number of samples in the applied batches; a sample that was trained twice counts twice.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns true if this replica holds the batches of the checkpoint that a run continues from.
    #[must_use]
    pub fn is_that_of(&self, resumed: &Resumed) -> bool {
        let same_batches = self.frontier.fingerprint() == resumed.frontier;
        same_batches && self.samples == resumed.samples && self.digest == resumed.digest
    }

    /// Number of samples that were trained more than once.
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.samples.saturating_sub(self.cursors.samples_done())
    }

    /// Number of batches that this replica has applied.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.frontier.iter().map(|(_, sequence)| sequence).sum()
    }

    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Number of weights of the model.
    #[must_use]
    pub fn weight_count(&self) -> usize {
        self.counts.len()
    }

    /// The digest that the weights should have, as it follows from the applied batches. An audit compares it with the
    /// digest of the weights themselves.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// For each origin (a worker's stream of batches), the number of applied batches.
    #[must_use]
    pub fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// The samples that the applied batches were trained on, as a position in each shard of the data.
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
