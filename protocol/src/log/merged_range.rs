//! A merged range: consecutive batches of one origin as one exact sum, for a replica that lacks many of them.
//!
//! Addition commutes, so a merged range changes a replica as its batches would have done. A decoder accepts a merged
//! range only if its sums have the digest in its header.

use serde::{Deserialize, Serialize};

use crate::bounded::COUNT_MAX;
use crate::ids::{OriginId, RunId};
use crate::log::batch::{self, Batch, BatchError, OriginStatus, Payload};
use crate::log::checksum;
use crate::log::cursor::Cursors;
use crate::log::frontier::SEQUENCE_MAX;
use crate::weights::digest::Digest;
use crate::weights::encoding::sums;
use crate::weights::sums::{Adder, Sums};

/// Version of the merged-range format that this program writes and reads.
const VERSION: u8 = 3;

/// Metadata of a merged range (consecutive batches of one worker as one sum): everything except its sums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeHeader {
    pub run: RunId,
    /// Origin (one life of a worker) that emitted the batches of the merged range.
    pub origin: OriginId,
    /// Sequence number of the last batch before the merged range; 0 if the range begins with the worker's first batch.
    pub from: u64,
    /// Sequence number of the last batch in the merged range.
    pub to: u64,
    /// Amount that the batches of the merged range add to a replica's digest (checksum of all weights).
    pub digest: Digest,
    /// Progress in shards (parts of the samples) once the merged range is applied: the positions up to which their
    /// samples are trained.
    pub cursors: Cursors,
    /// Number of samples that the batches of the merged range were computed from.
    pub samples: u64,
    /// State of the batches' worker after the last batch of the merged range.
    pub status: OriginStatus,
}

/// Merged range: consecutive batches of one worker as one exact sum, which takes less memory and traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedRange {
    pub header: RangeHeader,
    /// Sum of the batches of the merged range: the multiple of the smallest step by which they move each weight
    /// together.
    pub sums: Sums,
}

/// Header of a merged range as it is encoded, with the number of sums that follow.
#[derive(Serialize, Deserialize)]
struct WireHeader {
    header: RangeHeader,
    count: u32,
}

impl MergedRange {
    /// Encodes the merged range as the bytes of a message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        let wire = WireHeader {
            header: self.header.clone(),
            count: self.sums.entries().len() as u32,
        };
        // Writing to memory does not fail.
        let written = postcard::to_io(&wire, &mut out).map(|_| ());
        debug_assert!(written.is_ok());
        sums::encode(self.sums.entries(), &mut out);
        checksum::close(&mut out, 0);
        out
    }

    /// Decodes a merged range (consecutive batches as one sum) for a model of `weights` weights. Everything that the
    /// bytes claim is checked.
    pub fn decode(bytes: &[u8], weights: usize) -> Result<Self, BatchError> {
        let (WireHeader { header, count }, payload) = batch::open(bytes, VERSION)?;
        if header.from >= header.to {
            return Err(BatchError::NoSequence);
        }
        if header.to > SEQUENCE_MAX || header.samples > COUNT_MAX {
            return Err(BatchError::BadHeader);
        }
        let sums = Sums::from_sorted(sums::decode(payload, count as usize, weights)?);
        if sums.digest() != header.digest {
            return Err(BatchError::DigestDisagrees);
        }
        Ok(Self { header, sums })
    }

    /// Returns the remainder of this merged range for a replica that has already applied `known`, a shorter range with
    /// the same start. `None` if `known` is not such a range.
    #[must_use]
    pub fn after(self, known: &Self, weights: usize) -> Option<Self> {
        let Self { header, sums } = self;
        let fits = (known.header.origin, known.header.from) == (header.origin, header.from);
        if !fits || known.header.to >= header.to {
            return None;
        }
        let mut rest = Adder::new(weights);
        rest.add_sums(&sums);
        rest.subtract(&known.sums);
        let sums = rest.finish()?;
        Some(Self {
            header: RangeHeader {
                from: known.header.to,
                digest: sums.digest(),
                samples: header.samples.checked_sub(known.header.samples)?,
                ..header
            },
            sums,
        })
    }
}

/// Builder of a merged range: adds up consecutive batches and ranges of one worker.
#[derive(Debug)]
pub struct Merger {
    header: RangeHeader,
    sums: Adder,
}

impl Merger {
    /// Starts an empty merged range after batch number `from` of an origin (one life of a worker).
    #[must_use]
    pub fn new(run: RunId, origin: OriginId, from: u64, weights: usize) -> Self {
        Self {
            header: RangeHeader {
                run,
                origin,
                from,
                to: from,
                digest: Digest::default(),
                cursors: Cursors::default(),
                samples: 0,
                status: OriginStatus::default(),
            },
            sums: Adder::new(weights),
        }
    }

    /// Adds the worker's next batch to the merged range.
    ///
    /// # Panics
    /// If the batch does not follow the last batch that was added.
    pub fn add_batch(&mut self, batch: &Batch) {
        let header = &batch.header;
        self.go_on(
            header.sequence - 1,
            header.sequence,
            header.digest,
            u64::from(header.samples),
            header.status,
        );
        self.header.cursors.extend(header.cursors.iter().copied());
        match &batch.payload {
            Payload::Steps { tau, changes } => self.sums.add_changes(changes, *tau),
            Payload::Sums(sums) => self.sums.add_sums(sums),
            Payload::Dense(dense) => self.sums.add_dense(dense),
        }
    }

    /// Adds the worker's next range of batches to the merged range.
    ///
    /// # Panics
    /// If the range does not follow the last batch that was added.
    pub fn add_range(&mut self, range: &MergedRange) {
        let header = &range.header;
        let (from, to) = (header.from, header.to);
        self.go_on(from, to, header.digest, header.samples, header.status);
        self.header.cursors.merge(&header.cursors);
        self.sums.add_sums(&range.sums);
    }

    /// Returns the merged range; `None` if a sum is larger than can be held.
    #[must_use]
    pub fn finish(self) -> Option<MergedRange> {
        let sums = self.sums.finish()?;
        Some(MergedRange {
            header: self.header,
            sums,
        })
    }

    fn go_on(&mut self, from: u64, to: u64, digest: Digest, samples: u64, status: OriginStatus) {
        assert_eq!(
            self.header.to, from,
            "merged ranges must be added up in order, without a gap"
        );
        self.header.to = to;
        self.header.digest += digest;
        self.header.samples = self.header.samples.saturating_add(samples).min(COUNT_MAX);
        let before = self.header.status;
        self.header.status = OriginStatus {
            last: before.last || status.last,
            stop: before.stop || status.stop,
            ..status
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::batch::Header;
    use crate::log::cursor::{CursorAdvance, ShardId};
    use crate::rng::CounterRng;
    use crate::weights::changes::change;
    use crate::weights::lattice::Tau;

    const WEIGHTS: usize = 40;

    /// Returns `count` random batches of one origin, with sequence numbers from 1.
    fn batches(seed: u64, count: u64) -> Vec<Batch> {
        let mut random = CounterRng::new(seed, 1);
        (1..=count)
            .map(|sequence| {
                let mut changes: Vec<u32> = (0..random.below(9))
                    .map(|_| change(random.below(WEIGHTS as u64) as u32, random.below(2) == 0))
                    .collect();
                changes.sort_unstable();
                changes.dedup_by_key(|change| *change >> 1);
                let tau = Tau::from_steps(1 + random.below(1000) as u32).unwrap();
                let payload = Payload::Steps { tau, changes };
                let header = Header {
                    run: RunId(1),
                    origin: OriginId(2),
                    sequence,
                    seen: 0,
                    digest: payload.digest(),
                    cursors: vec![CursorAdvance {
                        shard: ShardId {
                            epoch: 0,
                            shard: random.below(3) as u32,
                        },
                        done: sequence as u32,
                    }],
                    samples: 3,
                    loss: 0.5,
                    status: OriginStatus::default(),
                };
                Batch { header, payload }
            })
            .collect()
    }

    fn merged(batches: &[Batch]) -> MergedRange {
        let first = &batches[0].header;
        let mut merger = Merger::new(first.run, first.origin, first.sequence - 1, WEIGHTS);
        for batch in batches {
            merger.add_batch(batch);
        }
        merger.finish().unwrap()
    }

    proptest! {
        #[test]
        fn a_range_does_what_its_batches_do(seed: u64, count in 1u64..20) {
            let batches = batches(seed, count);
            let mut counts = vec![0; WEIGHTS];
            for batch in &batches {
                batch.payload.apply_to_counts(&mut counts).unwrap();
            }
            let range = merged(&batches);
            prop_assert_eq!(Some(range.sums.clone()), Sums::between(&[0; WEIGHTS], &counts));
            prop_assert_eq!(range.header.digest, Digest::of_counts(&counts));
            prop_assert_eq!((range.header.samples, range.header.to), (3 * count, count));
            prop_assert_eq!(MergedRange::decode(&range.encode(), WEIGHTS), Ok(range));
        }

        #[test]
        fn a_range_can_be_cut_where_its_beginning_is_known(seed: u64, count in 2u64..20, cut in 1u64..19) {
            let batches = batches(seed, count);
            let cut = cut.min(count - 1) as usize;
            let (beginning, end) = (merged(&batches[..cut]), merged(&batches[cut..]));
            let mut both = Merger::new(RunId(1), OriginId(2), 0, WEIGHTS);
            both.add_range(&beginning);
            both.add_range(&end);
            let both = both.finish().unwrap();
            prop_assert_eq!(&both, &merged(&batches));
            let rest = both.after(&beginning, WEIGHTS).unwrap();
            prop_assert_eq!(&rest.sums, &end.sums);
            prop_assert_eq!(rest.header.digest, end.header.digest);
            prop_assert_eq!((rest.header.from, rest.header.samples), (cut as u64, end.header.samples));
            prop_assert!(end.clone().after(&beginning, WEIGHTS).is_none());
        }

        #[test]
        fn damage_is_found(seed: u64, position: usize, bit in 0u8..8) {
            let mut bytes = merged(&batches(seed, 5)).encode();
            let position = position % bytes.len();
            bytes[position] ^= 1 << bit;
            prop_assert!(MergedRange::decode(&bytes, WEIGHTS).is_err());
        }
    }

    #[test]
    fn false_claims_are_refused() {
        let range = merged(&batches(1, 5));
        let claim = |change: fn(&mut RangeHeader)| {
            let mut range = range.clone();
            change(&mut range.header);
            MergedRange::decode(&range.encode(), WEIGHTS)
        };
        assert_eq!(claim(|header| header.digest.0 += 1), Err(BatchError::DigestDisagrees));
        assert_eq!(claim(|header| header.to = 0), Err(BatchError::NoSequence));
        assert!(MergedRange::decode(&range.encode(), 1).is_err());
    }
}
