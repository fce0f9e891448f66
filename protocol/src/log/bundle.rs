//! A bundle: the exact sum of one batch from each of several origins. A replica that applies it has those batches.
//!
//! Encoding: one byte of version, the batches' headers in postcard, the steps, and a CRC-32 over all of these. A
//! decoder accepts a bundle only if its steps have the digest that the headers add up to.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::ids::OriginId;
use crate::log::batch::{self, BATCH_BYTES_MAX, BatchError, Header};
use crate::log::checksum;
use crate::weights::dense::Dense;
use crate::weights::digest::Digest;
use crate::weights::encoding;

/// Version of the bundle format that this program writes and reads.
const VERSION: u8 = 1;
/// Most batches in a bundle, the sum of one batch of each of several workers; a round never has as many.
pub const BUNDLED_MAX: usize = 4096;

/// Bundle: exact sum of one batch from each of several workers, with the headers of these batches, so that one message
/// replaces them.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    /// Headers of the bundled batches, which are all of one run and each of a different worker.
    pub headers: Vec<Header>,
    /// Sum of the bundled batches: the multiple of the smallest step by which they move each weight together.
    pub dense: Dense,
}

#[derive(Serialize, Deserialize)]
struct WireHeader {
    headers: Vec<Header>,
}

impl Bundle {
    /// Returns the name of each bundled batch: its origin (one life of a worker) and its sequence number.
    pub fn batches(&self) -> impl Iterator<Item = (OriginId, u64)> + '_ {
        self.headers.iter().map(|header| (header.origin, header.sequence))
    }

    /// Returns the amount that the bundle adds to a replica's digest (checksum of all weights), according to its
    /// headers.
    #[must_use]
    pub fn digest(&self) -> Digest {
        digest_of(&self.headers)
    }

    /// Encodes the bundle; `None` if the bytes are more than a message holds.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut out = vec![VERSION];
        let wire = WireHeader {
            headers: self.headers.clone(),
        };
        postcard::to_io(&wire, &mut out).ok()?;
        encoding::write_dense(&self.dense, &mut out);
        checksum::close(&mut out, 0);
        (out.len() <= BATCH_BYTES_MAX).then_some(out)
    }

    /// Decodes a bundle (sum of several workers' batches) for a model of `weights` weights. Everything that the bytes
    /// claim is checked.
    pub fn decode(bytes: &[u8], weights: usize) -> Result<Self, BatchError> {
        let bundle = Self::reread(bytes, weights)?;
        if bundle.dense.digest() != bundle.digest() {
            return Err(BatchError::DigestDisagrees);
        }
        Ok(bundle)
    }

    /// Decodes a bundle that a trusted process has decoded or made before. The checksum shows that its bytes are the
    /// same, so its digest is not computed again.
    pub fn reread(bytes: &[u8], weights: usize) -> Result<Self, BatchError> {
        if bytes.len() > BATCH_BYTES_MAX {
            return Err(BatchError::Oversize(bytes.len()));
        }
        let (WireHeader { headers }, steps) = batch::open(bytes, VERSION)?;
        let dense = encoding::read_dense(steps, weights)?;
        let bundle = Self { headers, dense };
        bundle.check()?;
        Ok(bundle)
    }

    /// Checks that the headers can be those of one bundle: all of one run, and each of a different worker.
    fn check(&self) -> Result<(), BatchError> {
        let Some(first) = self.headers.first() else {
            return Err(BatchError::BadHeader);
        };
        let origins: BTreeSet<OriginId> = self.headers.iter().map(|header| header.origin).collect();
        let of_one_run = self.headers.iter().all(|header| header.run == first.run);
        if origins.len() != self.headers.len() || origins.len() > BUNDLED_MAX || !of_one_run {
            return Err(BatchError::BadHeader);
        }
        if self.headers.iter().any(|header| header.sequence == 0) {
            return Err(BatchError::NoSequence);
        }
        Ok(())
    }
}

/// Returns the amount that batches with these headers add to a replica's digest (checksum of all weights).
#[must_use]
pub fn digest_of(headers: &[Header]) -> Digest {
    headers
        .iter()
        .fold(Digest::default(), |sum, header| sum + header.digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RunId;
    use crate::log::batch::OriginStatus;

    const WEIGHTS: usize = 40;

    fn header(origin: u64, steps: &Dense) -> Header {
        Header {
            run: RunId(1),
            origin: OriginId(origin),
            sequence: 3,
            seen: 0,
            digest: steps.digest(),
            cursors: Vec::new(),
            samples: 5,
            loss: 0.5,
            status: OriginStatus::default(),
        }
    }

    fn bundle() -> Bundle {
        let one = Dense::checked(2, (0..30).collect(), WEIGHTS).unwrap();
        let other = Dense::checked(2, (0..30).map(|at| 900 - 7 * at).collect(), WEIGHTS).unwrap();
        let both = one.steps().iter().zip(other.steps()).map(|(one, other)| one + other);
        Bundle {
            headers: vec![header(4, &one), header(9, &other)],
            dense: Dense::checked(2, both.collect(), WEIGHTS).unwrap(),
        }
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let bytes = bundle().encode().unwrap();
        assert_eq!(Bundle::decode(&bytes, WEIGHTS), Ok(bundle()));
        assert!(
            Bundle::decode(&bytes, 31).is_err(),
            "a bundle of a larger model must be refused"
        );
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert_eq!(Bundle::decode(&wrong, WEIGHTS), Err(BatchError::Damaged));
            assert!(Bundle::decode(&bytes[..at], WEIGHTS).is_err());
        }
    }

    #[test]
    fn headers_that_are_none_of_a_bundle_are_refused() {
        let refused = |change: fn(&mut Bundle)| {
            let mut bundle = bundle();
            change(&mut bundle);
            Bundle::decode(&bundle.encode().unwrap(), WEIGHTS).unwrap_err()
        };
        assert_eq!(refused(|bundle| bundle.headers.clear()), BatchError::BadHeader);
        assert_eq!(
            refused(|bundle| bundle.headers[1].origin = OriginId(4)),
            BatchError::BadHeader
        );
        assert_eq!(
            refused(|bundle| bundle.headers[1].run = RunId(2)),
            BatchError::BadHeader
        );
        assert_eq!(refused(|bundle| bundle.headers[0].sequence = 0), BatchError::NoSequence);
        // A header is missing, but its steps are still in the sum.
        let forgotten = refused(|bundle| drop(bundle.headers.pop()));
        assert_eq!(forgotten, BatchError::DigestDisagrees);
    }
}
