//! Encodings of a batch's changes as bytes, and the choice of the shortest one.
//!
//! Decoders read bytes from strangers: they check every claim before they act on it, have no effect when a claim is
//! false, and never reserve more memory than the bytes justify.

mod bitmap;
mod bits;
mod fixed;
pub(crate) mod plain;
mod rice;
pub(crate) mod sums;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::weights::changes::{self, CHANGES_MAX, ChangesError};
use crate::weights::dense::Dense;
use crate::weights::lattice::Tau;

/// Most weights that a batch of sums may move: however far they move, its payload then fits into 16 MiB.
pub const SUMS_MAX: usize = 1 << 21;

/// Most neighbouring weights that a dense batch may move: however far they move, its payload then fits into 16 MiB.
pub const DENSE_MAX: usize = 4_000_000;

/// Appends the movement of neighbouring weights in the form for messages other than batches: the number of weights,
/// then the encoded steps by which the weights from `first` on move.
pub fn write_steps(first: u32, steps: &[i32], out: &mut Vec<u8>) {
    out.extend((steps.len() as u32).to_le_bytes());
    plain::encode(first, steps, out);
}

/// Appends the movement of neighbouring weights in the form for messages other than batches, which [`read_dense`]
/// reads.
pub fn write_dense(dense: &Dense, out: &mut Vec<u8>) {
    write_steps(dense.first(), dense.steps(), out);
}

/// Decodes a movement of neighbouring weights from all the bytes that [`write_dense`] has appended, for a model of
/// `weights` weights. Everything that the bytes claim is checked.
pub fn read_dense(bytes: &[u8], weights: usize) -> Result<Dense, PayloadError> {
    let (count, payload) = bytes.split_first_chunk().ok_or(PayloadError::Truncated)?;
    let count = u32::from_le_bytes(*count) as usize;
    if count > DENSE_MAX {
        return Err(PayloadError::TooManySteps(count));
    }
    plain::decode(payload, count, weights)
}

/// Encoding of a batch's changes, each of which moves a weight by plus or minus τ; the batch's header names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Encoding {
    /// Encoding of changes: one `u32` for each, with index and sign.
    Fixed,
    /// Encoding of changes: gaps between indices in Rice code, with one sign bit each. The shortest in practice.
    Rice,
    /// Encoding of changes: two bits for every weight from the first changed one to the last; only for changes without
    /// repeats.
    Bitmap,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PayloadError {
    /// Reason why a batch's payload is refused: it ends before its last change.
    #[error("the payload ends before its last change")]
    Truncated,
    /// Reason why a batch's payload is refused: it goes on after its last change.
    #[error("the payload has bits after its last change")]
    TrailingBits,
    /// Reason why a batch's payload is refused: the number of its changes differs from the number in the header.
    #[error("the number of changes in the payload differs from the number in its header")]
    CountDisagrees,
    /// Reason why a batch's payload is refused: a parameter of the encoding is out of range.
    #[error("the payload has an unknown number width or a Rice parameter above {max}", max = rice::PARAMETER_MAX)]
    BadParameter,
    /// Reason why a batch's payload is refused: its bitmap holds the fourth two-bit symbol, which has no meaning.
    #[error("the bitmap of the payload holds an undefined symbol")]
    BadSymbol,
    /// Reason why a batch's payload is refused: the same changes have a shorter form in this encoding, and only the
    /// shortest is valid.
    #[error("the payload is not in its shortest form")]
    Padded,
    /// Reason why a batch's payload is refused: as a batch of sums, it moves more weights than such a batch may.
    #[error("a batch holds {0} sums, but at most {SUMS_MAX} are allowed")]
    TooManySums(usize),
    /// Reason why a batch's payload is refused: as a dense batch, it moves more neighbouring weights than such a batch
    /// may.
    #[error("a dense batch changes {0} neighbouring weights, but at most {DENSE_MAX} are allowed")]
    TooManySteps(usize),
    /// Reason why a batch's payload is refused: the decoded changes are invalid.
    #[error(transparent)]
    Changes(#[from] ChangesError),
}

/// Appends changes, each of which moves a weight by plus or minus τ, to `out` in the shortest encoding that can hold
/// them, and returns this encoding.
///
/// The changes must have passed [`changes::check`].
pub fn encode_shortest(changes: &[u32], out: &mut Vec<u8>) -> Encoding {
    if changes.is_empty() {
        return Encoding::Fixed;
    }
    let plan = rice::plan(changes);
    let (encoding, _) = [
        (Encoding::Rice, Some(plan.bytes())),
        (Encoding::Bitmap, bitmap::encoded_len(changes)),
        (Encoding::Fixed, Some(fixed::encoded_len(changes))),
    ]
    .into_iter()
    .filter_map(|(encoding, bytes)| Some((encoding, bytes?)))
    .min_by_key(|&(_, bytes)| bytes)
    .unwrap_or((Encoding::Fixed, 0));
    match encoding {
        Encoding::Fixed => fixed::encode(changes, out),
        Encoding::Rice => rice::encode(changes, plan, out),
        Encoding::Bitmap => bitmap::encode(changes, out),
    }
    encoding
}

/// Appends changes in a given encoding. Returns `false`, and writes nothing, if the encoding cannot hold them.
pub fn encode(encoding: Encoding, changes: &[u32], out: &mut Vec<u8>) -> bool {
    match encoding {
        Encoding::Fixed => fixed::encode(changes, out),
        Encoding::Rice => rice::encode(changes, rice::plan(changes), out),
        Encoding::Bitmap if bitmap::encoded_len(changes).is_some() => bitmap::encode(changes, out),
        Encoding::Bitmap => return false,
    }
    true
}

/// Replaces the contents of `out` by the changes of a payload. After an error, `out` is empty.
pub fn decode(
    encoding: Encoding,
    payload: &[u8],
    count: usize,
    weights: usize,
    tau: Tau,
    out: &mut Vec<u32>,
) -> Result<(), PayloadError> {
    out.clear();
    if count > CHANGES_MAX {
        return Err(ChangesError::TooMany(count).into());
    }
    if count == 0 {
        return if payload.is_empty() {
            Ok(())
        } else {
            Err(PayloadError::CountDisagrees)
        };
    }
    let decoded = match encoding {
        Encoding::Fixed => fixed::decode(payload, count, out),
        Encoding::Rice => rice::decode(payload, count, weights, out),
        Encoding::Bitmap => bitmap::decode(payload, count, weights, out),
    };
    let checked = decoded.and_then(|()| Ok(changes::check(out, weights, tau)?));
    if checked.is_err() {
        out.clear();
    }
    checked
}

#[cfg(test)]
pub(crate) mod tests;
