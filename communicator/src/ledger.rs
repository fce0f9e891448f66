//! The ledger: a node's own replica of the model as grid counts, with what it is the sum of.
//!
//! Counts are exact beyond where floats are, need no worker to be asked, and can be checked at any time: the digest
//! that the frontier implies must be the digest of the counts.

use protocol::batch::{Batch, Header};
use protocol::changes::apply_to_counts;
use protocol::cursor::Cursors;
use protocol::digest::Digest;
use protocol::frontier::{Frontier, Position};
use protocol::ids::RunId;
use protocol::lattice::{Range, RangeError, weight_of};
use thiserror::Error;

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
    Ahead {
        /// How many.
        missing: u64,
    },
}

/// Why a batch is no part of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// The batch belongs to another run.
    #[error("a batch of run {found} came to run {expected}")]
    ForeignRun {
        /// This ledger's run.
        expected: RunId,
        /// The batch's.
        found: RunId,
    },
    /// The run is over: a weight left the range before.
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// A ledger's counts do not have the digest that its frontier implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the ledger is damaged: its weights have the digest {found}, but its batches add up to {expected}")]
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
    digest: Digest,
    samples: u64,
    /// A weight has left the range: nothing is applied any more, so that counts cannot run on for ever.
    diverged: bool,
}

impl Ledger {
    /// The ledger of a run before its first batch.
    #[must_use]
    pub fn new(run: RunId, counts: Vec<i32>) -> Self {
        Self {
            digest: Digest::of_counts(&counts),
            frontier: Frontier::default(),
            cursors: Cursors::default(),
            samples: 0,
            diverged: false,
            run,
            counts,
        }
    }

    /// Applies a batch if it is the next one of its origin. The batch is a decoded one, so it is valid in itself.
    ///
    /// A batch that pushes a weight out of the range is the last one that is applied; every later one is refused.
    pub fn apply(&mut self, batch: &Batch) -> Result<Outcome, LedgerError> {
        let Header {
            run, origin, sequence, ..
        } = batch.header;
        if run != self.run {
            return Err(LedgerError::ForeignRun {
                expected: self.run,
                found: run,
            });
        }
        if self.diverged {
            return Err(RangeError.into());
        }
        match self.frontier.position(origin, sequence) {
            Position::Duplicate => return Ok(Outcome::Duplicate),
            Position::Ahead { missing } => return Ok(Outcome::Ahead { missing }),
            Position::Next => {}
        }
        let range = apply_to_counts(&batch.words, batch.header.tau, &mut self.counts);
        self.digest += batch.header.digest;
        self.samples += u64::from(batch.header.samples);
        self.cursors.extend(batch.header.cursors.iter().copied());
        // It was the next one a moment ago, and nothing came between.
        let advanced = self.frontier.advance(origin, sequence);
        debug_assert!(advanced.is_ok());
        self.diverged = range.is_err();
        Ok(range.map_or_else(Outcome::Diverged, Outcome::Applied))
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

    /// The weights as floats.
    #[must_use]
    pub fn weights(&self) -> Vec<f32> {
        self.counts.iter().copied().map(weight_of).collect()
    }

    /// The grid counts themselves.
    #[must_use]
    pub fn counts(&self) -> &[i32] {
        &self.counts
    }

    /// The samples that the applied batches were computed from; samples trained twice count twice.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The applied batches.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.frontier.iter().map(|(_, sequence)| sequence).sum()
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::batch::Flags;
    use protocol::changes::word;
    use protocol::cursor::{CursorAdvance, ShardId};
    use protocol::ids::OriginId;
    use protocol::lattice::Tau;

    use super::*;

    const RUN: RunId = RunId(1);
    const WEIGHTS: usize = 20;

    fn batch(origin: u64, sequence: u64, words: Vec<u32>) -> Batch {
        let tau = Tau::from_steps(origin as u32 * 100 + sequence as u32).unwrap();
        let header = Header {
            run: RUN,
            origin: OriginId(origin),
            sequence,
            seen: 0,
            tau,
            digest: Digest::of_changes(&words, tau),
            cursors: vec![CursorAdvance {
                shard: ShardId {
                    epoch: 0,
                    shard: origin as u32,
                },
                done: sequence as u32 * 8,
            }],
            samples: 8,
            loss: 1.0,
            flags: Flags::default(),
        };
        Batch { header, words }
    }

    #[test]
    fn batches_apply_once_and_in_turn() {
        let mut ledger = Ledger::new(RUN, vec![5; WEIGHTS]);
        let second = batch(1, 2, vec![word(3, true)]);
        assert_eq!(ledger.apply(&second), Ok(Outcome::Ahead { missing: 1 }));
        assert_eq!(ledger.audit(), Ok(Digest::of_counts(&[5; WEIGHTS])));
        let first = batch(1, 1, vec![word(3, true), word(4, false)]);
        assert_eq!(ledger.apply(&first), Ok(Outcome::Applied(Range::Safe)));
        assert_eq!(ledger.apply(&first), Ok(Outcome::Duplicate));
        assert_eq!(ledger.apply(&second), Ok(Outcome::Applied(Range::Safe)));
        assert_eq!(ledger.weights()[3], weight_of(5 + 101 + 102));
        assert_eq!(ledger.weights()[4], weight_of(5 - 101));
        assert_eq!(ledger.cursors().samples_done(), 16);
        assert!(ledger.audit().is_ok());
    }

    #[test]
    fn foreign_runs_change_nothing() {
        let mut ledger = Ledger::new(RunId(2), vec![0; WEIGHTS]);
        let expected = Err(LedgerError::ForeignRun {
            expected: RunId(2),
            found: RUN,
        });
        assert_eq!(ledger.apply(&batch(1, 1, vec![word(3, true)])), expected);
        assert_eq!(ledger.weights(), vec![0.0; WEIGHTS]);
        assert_eq!(*ledger.frontier(), Frontier::default());
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let mut ledger = Ledger::new(RUN, vec![7; WEIGHTS]);
        ledger.counts[11] ^= 1 << 9;
        let AuditError { expected, found } = ledger.audit().unwrap_err();
        assert_ne!(expected, found);
    }

    #[test]
    fn leaving_the_range_ends_the_run() {
        let mut ledger = Ledger::new(RUN, vec![protocol::lattice::RANGE_ERROR_STEPS - 50; WEIGHTS]);
        let last = ledger.apply(&batch(1, 1, vec![word(0, true)]));
        assert_eq!(last, Ok(Outcome::Diverged(RangeError)));
        assert_eq!(ledger.frontier().applied(OriginId(1)), 1);
        assert!(ledger.audit().is_ok());
        let next = batch(1, 2, vec![word(1, false)]);
        assert_eq!(ledger.apply(&next), Err(LedgerError::Range(RangeError)));
        assert_eq!(ledger.frontier().applied(OriginId(1)), 1);
    }

    proptest! {
        /// Origins' batches in any interleaving, some delivered twice: one ledger.
        #[test]
        fn any_interleaving_gives_the_same_ledger(seed: u64, lengths in proptest::collection::vec(0..6u64, 1..5)) {
            let mut random = protocol::rng::CounterRng::new(seed, 0);
            let mut batches = Vec::new();
            for (origin, &length) in (1u64..).zip(&lengths) {
                for sequence in 1..=length {
                    let mut indices: Vec<u32> = (0..5).map(|_| random.below(WEIGHTS as u64) as u32).collect();
                    indices.sort_unstable();
                    indices.dedup();
                    let words = indices.iter().map(|&index| word(index, index % 2 == 0)).collect();
                    batches.push(batch(origin, sequence, words));
                }
            }
            let mut straight = Ledger::new(RUN, vec![0; WEIGHTS]);
            for batch in &batches {
                prop_assert_eq!(straight.apply(batch), Ok(Outcome::Applied(Range::Safe)));
            }
            let mut shuffled = Ledger::new(RUN, vec![0; WEIGHTS]);
            while shuffled.frontier() != straight.frontier() {
                let next = &batches[random.below(batches.len() as u64) as usize];
                shuffled.apply(next).unwrap();
            }
            prop_assert_eq!(shuffled.weights(), straight.weights());
            prop_assert_eq!(shuffled.digest(), straight.digest());
            prop_assert_eq!(shuffled.cursors(), straight.cursors());
            prop_assert!(shuffled.audit().is_ok());
        }
    }
}
