//! A batch: the changes of weights that a worker emits at one time, with their header, and their form on the wire.
//!
//! Encoding: one byte of version, the header in postcard, the payload, and a CRC-32 over all of these.
//! `(origin, sequence)` names a batch for ever. A decoder accepts only batches that are valid in themselves: their
//! indices are in range, and their changes have the digest in the header.

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
/// Most cursors in one batch. The samples of one step lie in several shards, but never in more than this number.
pub const CURSORS_MAX: usize = 64;

/// State of an origin (one life of a worker) after one of its batches, which the batch carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u8, u64)", try_from = "(u8, u64)")]
pub struct OriginStatus {
    /// True if this is the origin's last batch, after which the origin is closed.
    pub last: bool,
    /// True if the origin has seen the request to stop the run.
    pub stop: bool,
    /// Phase of the round that the origin has reached, for strategies with rounds.
    pub round_phase: RoundPhase,
    /// Number of the round that the origin has reached.
    pub round: u64,
}

/// Phase of a round that an origin has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoundPhase {
    /// The batch carries the worker's contribution to the round.
    #[default]
    Contributes,
    /// The worker has reached the round and announces its loss. Its contribution follows once all losses are known.
    Announces,
    /// The worker has nothing to train for now: the barrier does not wait for its next round.
    Idle,
}

impl OriginStatus {
    /// Returns the origin's progress as one number: twice the round, plus 1 unless the origin has only announced its
    /// loss yet.
    #[must_use]
    pub fn phase(&self) -> u64 {
        self.round.saturating_mul(2) + u64::from(self.round_phase != RoundPhase::Announces)
    }
}

/// Form of the status on the wire: two flag bits with the phase of the round, and the round's number.
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
    /// Run that the batch belongs to.
    pub run: RunId,
    /// Origin that emitted the batch.
    pub origin: OriginId,
    /// Number of the batch at its origin, counted from 1.
    pub sequence: u64,
    /// Number of batches, of all origins, in the weights at which the gradient was computed. The receiver derives the
    /// batch's staleness from it.
    pub seen: u64,
    /// Amount that the batch adds to a replica's digest.
    pub digest: Digest,
    /// Cursors that the batch's samples move, each to its new place in a shard.
    #[serde(deserialize_with = "bounded_cursors")]
    pub cursors: Vec<CursorAdvance>,
    /// Number of samples that the batch was computed from.
    pub samples: u32,
    /// Mean loss of the samples that the batch was computed from.
    pub loss: f32,
    /// State of the origin after this batch.
    pub status: OriginStatus,
}

/// Reads a list of cursors and stops at the first one beyond [`CURSORS_MAX`], so that a forged list takes no memory.
fn bounded_cursors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CursorAdvance>, D::Error> {
    BoundedVec::<_, CURSORS_MAX>::deserialize(deserializer).map(BoundedVec::into_vec)
}

/// Decoded batch that a replica can apply.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Metadata of the batch.
    pub header: Header,
    /// Changes of weights that the batch carries.
    pub payload: Payload,
}

/// Header as it is encoded, with the form and length of the payload that follows.
#[derive(Serialize, Deserialize)]
struct WireHeader {
    header: Header,
    form: Form,
    count: u32,
    payload_bytes: u32,
}

/// Reason why a batch, a merged range or a bundle is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    /// The message is longer than [`BATCH_BYTES_MAX`].
    #[error("the batch is {0} bytes long, but at most {BATCH_BYTES_MAX} bytes are allowed")]
    Oversize(usize),
    /// The message has another version of the format than this program.
    #[error(
        "the batch has version {0}, but this program speaks version {VERSION}; bring all nodes to the same release"
    )]
    UnknownVersion(u8),
    /// The length of the message differs from the length in its header.
    #[error("the batch's length differs from the length in its header")]
    WrongLength,
    /// The checksum does not match.
    #[error("the batch was damaged in transit: its checksum does not match")]
    Damaged,
    /// The header cannot be decoded, or exceeds a limit.
    #[error("the batch's header cannot be decoded or advances more than {CURSORS_MAX} cursors")]
    BadHeader,
    /// The sequence is 0 although sequences count from 1, or a range contains no sequence.
    #[error("the batch has sequence 0, but sequences count from 1")]
    NoSequence,
    /// The payload is invalid.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The digest of the changes differs from the digest in the header.
    #[error("the digest of the batch's changes differs from the digest in its header")]
    DigestDisagrees,
}

impl Header {
    /// Appends the bytes of a batch with this header and payload, in the shortest encoding, and returns their number.
    /// The changes must be valid: they are not checked here, and a decoder would refuse invalid ones.
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
    /// Decodes a batch for a model of `weights` weights. All claims in the bytes are checked, and an error has no
    /// effect.
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

/// Takes apart a batch, a merged range or a bundle: checks the checksum at its end and the version in its first byte,
/// and returns its header and the payload that follows.
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
