//! A batch: the changes of weights that a worker emits at one time, with their header, and their form on the wire.
//!
//! Encoding: one byte of version, the header in postcard, the payload, and a CRC-32 over all of these.
//! `(origin, sequence)` names a batch for ever. A decoder accepts only batches that are valid in themselves: their
//! indices are in range, and their changes have the digest in the header.
//!
//! ```
//! use protocol::ids::{OriginId, RunId};
//! use protocol::log::batch::{Batch, BatchError, Header, OriginStatus, Payload};
//! use protocol::weights::changes::change;
//! use protocol::weights::lattice::Tau;
//!
//! // Weight 7 moves up by τ, and weight 40 down.
//! let payload = Payload::Steps { tau: Tau::nearest(0.01), changes: vec![change(7, true), change(40, false)] };
//! let header = Header {
//!     run: RunId(1),
//!     origin: OriginId(2),
//!     sequence: 1,
//!     seen: 0,
//!     digest: payload.digest(),
//!     cursors: Vec::new(),
//!     samples: 32,
//!     loss: 0.7,
//!     status: OriginStatus::default(),
//! };
//! let mut bytes = Vec::new();
//! header.encode(&payload, &mut bytes)?;
//! assert_eq!(Batch::decode(&bytes, 100)?, Batch { header, payload });
//! // A model of 30 weights has no weight 40.
//! assert!(Batch::decode(&bytes, 30).is_err());
//! bytes[10] ^= 1;
//! assert_eq!(Batch::decode(&bytes, 100), Err(BatchError::Damaged));
//! # Ok::<(), BatchError>(())
//! ```

mod payload;

use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::bounded::BoundedVec;
use crate::ids::{OriginId, RunId};
use crate::log::checksum;
use crate::log::cursor::CursorAdvance;
use crate::weights::digest::Digest;
use crate::weights::encoding::PayloadError;

use self::payload::Form;
pub use self::payload::Payload;

/// Version of the batch format that this program writes and reads.
pub const VERSION: u8 = 5;
/// Longest encoded batch in bytes. Longer data travels in several messages.
pub const BATCH_BYTES_MAX: usize = 16 << 20;
/// Most shards (parts of the samples) that the samples of one batch may lie in; the batch's header has a cursor for
/// each. The samples of one step lie in several shards, but never in more than this number.
pub const CURSORS_MAX: usize = 64;

/// State of an origin (one life of a worker, as a stream of batches), which each of its batches carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u8, u64)", try_from = "(u8, u64)")]
pub struct OriginStatus {
    /// True if the batch is the last one of its origin (one life of a worker).
    pub last: bool,
    /// True if the batch's worker has been told to stop the run, so that the run ends for all.
    pub stop: bool,
    /// Point of a round that the batch's worker has reached, for strategies with rounds.
    pub round_phase: RoundPhase,
    /// Number of the round that the batch's worker has reached.
    pub round: u64,
}

/// Point of a round that a worker has reached, as its batch says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoundPhase {
    /// Point of a round: with this batch, the worker sends its part of the weight difference that it has learned in the
    /// round.
    #[default]
    Contributes,
    /// Point of a round: the worker has made its last step and announces its loss with this batch. It sends its part of
    /// the learned weight difference once the losses of all workers are known.
    Announces,
    /// Point of a round: the worker has nothing to train for now, so the other workers do not wait for its next round.
    Idle,
}

impl OriginStatus {
    /// Returns the worker's progress in its rounds as one number, to compare states: twice the round, plus 1 unless the
    /// worker has only announced its loss yet.
    #[must_use]
    pub fn phase(&self) -> u64 {
        self.round.saturating_mul(2) + u64::from(self.round_phase != RoundPhase::Announces)
    }
}

/// Converts the status to its form on the wire: two flag bits with the phase of the round, and the round's number.
impl From<OriginStatus> for (u8, u64) {
    fn from(status: OriginStatus) -> Self {
        let OriginStatus {
            last,
            stop,
            round_phase,
            round,
        } = status;
        let round_phase = match round_phase {
            RoundPhase::Contributes => 0,
            RoundPhase::Idle => 1,
            RoundPhase::Announces => 2,
        };
        (u8::from(last) | u8::from(stop) << 1 | round_phase << 2, round)
    }
}

impl TryFrom<(u8, u64)> for OriginStatus {
    type Error = &'static str;

    fn try_from((bits, round): (u8, u64)) -> Result<Self, Self::Error> {
        let is_set = |bit: u8| bits >> bit & 1 == 1;
        let round_phase = match bits >> 2 {
            0 => RoundPhase::Contributes,
            1 => RoundPhase::Idle,
            2 => RoundPhase::Announces,
            _ => return Err("unknown origin status in batch header"),
        };
        Ok(Self {
            last: is_set(0),
            stop: is_set(1),
            round_phase,
            round,
        })
    }
}

/// Metadata of a batch: everything except its changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub run: RunId,
    /// Origin (one life of a worker) that emitted the batch.
    pub origin: OriginId,
    /// Number of the batch among those of its origin (one life of a worker), counted from 1.
    pub sequence: u64,
    /// Number of batches, of all workers, in the weights at which the gradient was computed. The receiver derives the
    /// batch's staleness from it.
    pub seen: u64,
    /// Amount that the batch adds to a replica's digest (checksum of all weights). The receiver checks the batch by it.
    pub digest: Digest,
    /// Positions in shards (parts of the samples) up to which the samples are done, once the batch is applied.
    #[serde(deserialize_with = "bounded_cursors")]
    pub cursors: Vec<CursorAdvance>,
    /// Number of samples that the batch's changes were computed from.
    pub samples: u32,
    /// Mean loss of the samples that the batch's changes were computed from.
    pub loss: f32,
    /// State of the batch's worker after this batch.
    pub status: OriginStatus,
}

/// Reads a list of shard positions (cursors) and stops at the first one beyond [`CURSORS_MAX`], so that a forged list
/// takes no memory.
fn bounded_cursors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CursorAdvance>, D::Error> {
    BoundedVec::<_, CURSORS_MAX>::deserialize(deserializer).map(BoundedVec::into_vec)
}

/// Batch of weight changes from one worker, decoded and checked, that a replica can apply.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub header: Header,
    pub payload: Payload,
}

/// Header of a batch as it is encoded, with the form and length of the payload that follows.
#[derive(Serialize, Deserialize)]
struct WireHeader {
    header: Header,
    form: Form,
    count: u32,
    payload_bytes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    /// Reason why an encoded batch is refused: it is longer than [`BATCH_BYTES_MAX`].
    #[error("the batch is {0} bytes long, but at most {BATCH_BYTES_MAX} bytes are allowed")]
    Oversize(usize),
    /// Reason why an encoded batch is refused: it has another version of the format than this program.
    #[error(
        "the batch has version {0}, but this program speaks version {VERSION}; bring all nodes to the same release"
    )]
    UnknownVersion(u8),
    /// Reason why an encoded batch is refused: its length differs from the length in its header.
    #[error("the batch's length differs from the length in its header")]
    WrongLength,
    /// Reason why an encoded batch is refused: its checksum does not match.
    #[error("the batch was damaged in transit: its checksum does not match")]
    Damaged,
    /// Reason why an encoded batch is refused: its header cannot be decoded, or exceeds a limit.
    #[error("the batch's header cannot be decoded or advances more than {CURSORS_MAX} cursors")]
    BadHeader,
    /// Reason why an encoded batch is refused: its sequence number is 0 although these count from 1, or a range of
    /// batches is empty.
    #[error("the batch has sequence 0, but sequences count from 1")]
    NoSequence,
    /// Reason why an encoded batch is refused: its payload is invalid.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// Reason why an encoded batch is refused: the digest of its changes differs from the digest in its header.
    #[error("the digest of the batch's changes differs from the digest in its header")]
    DigestDisagrees,
}

impl Header {
    /// Appends the bytes of a batch with this header and payload, in the shortest encoding, and returns their number.
    /// The payload must be valid: it is not checked here, and a decoder would refuse an invalid one.
    pub fn encode(&self, payload: &Payload, out: &mut Vec<u8>) -> Result<usize, BatchError> {
        let start = out.len();
        let mut encoded = Vec::with_capacity(payload.len() * 2);
        let form = payload.encode(&mut encoded);
        let wire = WireHeader {
            header: self.clone(),
            form,
            count: payload.len() as u32,
            payload_bytes: encoded.len() as u32,
        };
        out.push(VERSION);
        postcard::to_io(&wire, &mut *out).map_err(|_| BatchError::BadHeader)?;
        out.extend_from_slice(&encoded);
        checksum::close(out, start);
        let bytes = out.len() - start;
        if bytes > BATCH_BYTES_MAX {
            out.truncate(start);
            return Err(BatchError::Oversize(bytes));
        }
        Ok(bytes)
    }
}

impl Batch {
    /// Decodes a batch for a model of `weights` weights. Everything that the bytes claim is checked.
    pub fn decode(bytes: &[u8], weights: usize) -> Result<Self, BatchError> {
        let batch = Self::reread(bytes, weights)?;
        if batch.payload.digest() != batch.header.digest {
            return Err(BatchError::DigestDisagrees);
        }
        Ok(batch)
    }

    /// Decodes a batch that a trusted process has decoded before. The checksum shows that its bytes are the same, so
    /// its digest is not computed again.
    pub fn reread(bytes: &[u8], weights: usize) -> Result<Self, BatchError> {
        if bytes.len() > BATCH_BYTES_MAX {
            return Err(BatchError::Oversize(bytes.len()));
        }
        let (wire, encoded) = open(bytes, VERSION)?;
        let WireHeader {
            header,
            form,
            count,
            payload_bytes,
        } = wire;
        if encoded.len() != payload_bytes as usize {
            return Err(BatchError::WrongLength);
        }
        if header.sequence == 0 {
            return Err(BatchError::NoSequence);
        }
        let payload = Payload::decode(form, encoded, count as usize, weights)?;
        Ok(Self { header, payload })
    }
}

/// Takes apart an encoded batch, merged range or bundle: checks the checksum at its end and the version in its first
/// byte, and returns its header and the payload that follows.
pub(crate) fn open<'a, Head: Deserialize<'a>>(bytes: &'a [u8], expected: u8) -> Result<(Head, &'a [u8]), BatchError> {
    let body = checksum::open(bytes).ok_or(BatchError::Damaged)?;
    let (&version, body) = body.split_first().ok_or(BatchError::WrongLength)?;
    if version != expected {
        return Err(BatchError::UnknownVersion(version));
    }
    postcard::take_from_bytes(body).map_err(|_| BatchError::BadHeader)
}

#[cfg(test)]
mod tests;
