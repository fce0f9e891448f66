//! A batch: what one worker lets out at a time, with what rides on it, as bytes on the wire.
//!
//! Encoded: one byte of version, the header in postcard, the payload, a CRC-32 over all of that. A batch is known by
//! `(origin, sequence)`, for ever; what a decoder accepts is valid in itself: its indices are in range, its digest is
//! the digest of its changes.

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

/// The version this program writes and reads.
pub const VERSION: u8 = 5;
/// The longest batch, encoded. What is larger travels in pieces.
pub const BATCH_BYTES_MAX: usize = 16 << 20;
/// A minibatch may touch several shards, but not more than this.
pub const CURSORS_MAX: usize = 64;

/// The status of an origin after one of its batches, as the batch tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u8, u64)", try_from = "(u8, u64)")]
pub struct OriginStatus {
    /// The origin's last batch: it is closed after this one.
    pub last: bool,
    /// The origin has seen the run's stop.
    pub stop: bool,
    /// Where its strategy has rounds, what it does in the one that it has come to.
    pub round_phase: RoundPhase,
    /// That round.
    pub round: u64,
}

/// The phase of the round that an origin has reached.
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
    /// How far the origin has come: a round has a phase before its share is out, and one after.
    #[must_use]
    pub fn phase(&self) -> u64 {
        self.round.saturating_mul(2) + u64::from(self.round_phase != RoundPhase::Announces)
    }
}

/// On the wire: two bits, what it does, and the round.
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

/// Everything about a batch but its changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The run it belongs to.
    pub run: RunId,
    /// The incarnation of a worker that made it.
    pub origin: OriginId,
    /// Its number at its origin, from 1.
    pub sequence: u64,
    /// How many batches, of all origins, were in the weights that its gradient was computed on. Whoever applies it
    /// tells from this how stale it is.
    pub seen: u64,
    /// What it adds to a replica's digest.
    pub digest: Digest,
    /// How far the samples behind it have come in their shards.
    #[serde(deserialize_with = "bounded_cursors")]
    pub cursors: Vec<CursorAdvance>,
    /// How many samples it was computed from.
    pub samples: u32,
    /// Their mean loss.
    pub loss: f32,
    /// How its origin stands.
    pub status: OriginStatus,
}

/// Reads no further than one cursor too many, so that a batch full of them takes no memory.
fn bounded_cursors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CursorAdvance>, D::Error> {
    BoundedVec::<_, CURSORS_MAX>::deserialize(deserializer).map(BoundedVec::into_vec)
}

/// A batch as a replica applies it.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// What is known of it.
    pub header: Header,
    /// Its changes.
    pub payload: Payload,
}

/// The header as it stands in the bytes: with how its payload is written.
#[derive(Serialize, Deserialize)]
struct WireHeader {
    header: Header,
    form: Form,
    count: u32,
    payload_bytes: u32,
}

/// Why a batch or a range is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    /// Longer than a batch may be.
    #[error("the batch is {0} bytes long, but at most {BATCH_BYTES_MAX} bytes are allowed")]
    Oversize(usize),
    /// Another version of the format.
    #[error(
        "the batch has version {0}, but this program speaks version {VERSION}; bring all nodes to the same release"
    )]
    UnknownVersion(u8),
    /// Cut off, or with more behind it.
    #[error("the batch's length differs from the length in its header")]
    WrongLength,
    /// The checksum does not match.
    #[error("the batch was damaged in transit: its checksum does not match")]
    Damaged,
    /// The header is not one.
    #[error("the batch's header cannot be decoded or advances more than {CURSORS_MAX} cursors")]
    BadHeader,
    /// Sequences count from 1.
    #[error("the batch has sequence 0, but sequences count from 1")]
    NoSequence,
    /// The payload is refused.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The changes do not have the digest that the header claims.
    #[error("the digest of the batch's changes differs from the digest in its header")]
    DigestDisagrees,
}

impl Header {
    /// Appends the bytes of a batch with this header and these changes, in their shortest encoding, and returns how many
    /// these are. The changes must be valid: what a decoder of the same model would refuse may be written all the same.
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
    /// Reads a whole batch for a model of so many weights. Nothing is trusted: an error has had no effect.
    pub fn decode(bytes: &[u8], weights: usize) -> Result<Self, BatchError> {
        let batch = Self::reread(bytes, weights)?;
        if batch.payload.digest() != batch.header.digest {
            return Err(BatchError::DigestDisagrees);
        }
        Ok(batch)
    }

    /// Reads a batch that was decoded before, by a process that is trusted: its checksum tells whether it is the same, and
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

/// What batches, ranges and bundles have in common: their header, of which one byte of version says how it is read, then
/// what they do to weights, then their checksum. Returns the first two.
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
