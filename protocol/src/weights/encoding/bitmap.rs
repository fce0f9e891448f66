//! The `Bitmap` encoding: two bits for every weight from the first changed one to the last. For dense batches.
//!
//! Payload: the first index as a little-endian `u32`, then the symbols, four to a byte, low bits first. The first and
//! the last symbol must be changes, so that a set of changes has only one bitmap.

use super::PayloadError;
use crate::weights::changes::has_repeats;

const NONE: u8 = 0;
const PLUS: u8 = 1;
const MINUS: u8 = 2;
const PER_BYTE: usize = 4;
const INDEX_BYTES: usize = 4;

/// Returns the number of bytes that changes take in the bitmap encoding; `None` if a weight moves more than once, which
/// two bits for each weight cannot say.
pub(super) fn encoded_len(changes: &[u32]) -> Option<usize> {
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else {
        return Some(0);
    };
    let covered = (last >> 1) - (first >> 1) + 1;
    (!has_repeats(changes)).then(|| INDEX_BYTES + (covered as usize).div_ceil(PER_BYTE))
}

pub(super) fn encode(changes: &[u32], out: &mut Vec<u8>) {
    let (Some(first), Some(len)) = (changes.first(), encoded_len(changes)) else {
        return;
    };
    let first = first >> 1;
    out.extend(first.to_le_bytes());
    let start = out.len();
    out.resize(start + len - INDEX_BYTES, 0);
    for &change in changes {
        let position = ((change >> 1) - first) as usize;
        let symbol = if change & 1 == 1 { PLUS } else { MINUS };
        out[start + position / PER_BYTE] |= symbol << (2 * (position % PER_BYTE));
    }
}

pub(super) fn decode(payload: &[u8], count: usize, weights: usize, out: &mut Vec<u32>) -> Result<(), PayloadError> {
    let (&first, symbols) = payload
        .split_first_chunk::<INDEX_BYTES>()
        .ok_or(PayloadError::Truncated)?;
    let first = u64::from(u32::from_le_bytes(first));
    let (Some(&front), Some(&back)) = (symbols.first(), symbols.last()) else {
        return Err(PayloadError::Truncated);
    };
    if front & 3 == NONE || back == 0 {
        return Err(PayloadError::Padded);
    }
    out.reserve(count.min(symbols.len() * PER_BYTE));
    for (at, &byte) in (0u64..).zip(symbols) {
        if byte == 0 {
            continue;
        }
        for within in 0..PER_BYTE as u64 {
            let symbol = byte >> (2 * within) & 3;
            if symbol == NONE {
                continue;
            }
            if symbol != PLUS && symbol != MINUS {
                return Err(PayloadError::BadSymbol);
            }
            let index = first + at * PER_BYTE as u64 + within;
            if index >= weights as u64 {
                return Err(crate::weights::changes::ChangesError::IndexOutOfRange { index, weights }.into());
            }
            if out.len() == count {
                return Err(PayloadError::CountDisagrees);
            }
            out.push((index as u32) << 1 | u32::from(symbol == PLUS));
        }
    }
    if out.len() == count {
        Ok(())
    } else {
        Err(PayloadError::CountDisagrees)
    }
}
