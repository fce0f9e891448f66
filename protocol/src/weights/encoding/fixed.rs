//! The `Fixed` encoding: every change as a little-endian `u32`.

use super::PayloadError;

pub(super) fn encoded_len(changes: &[u32]) -> usize {
    size_of_val(changes)
}

pub(super) fn encode(changes: &[u32], out: &mut Vec<u8>) {
    out.reserve(encoded_len(changes));
    out.extend(changes.iter().flat_map(|change| change.to_le_bytes()));
}

pub(super) fn decode(payload: &[u8], count: usize, out: &mut Vec<u32>) -> Result<(), PayloadError> {
    let (changes, rest) = payload.as_chunks::<4>();
    if !rest.is_empty() || changes.len() != count {
        return Err(PayloadError::CountDisagrees);
    }
    out.extend(changes.iter().map(|&bytes| u32::from_le_bytes(bytes)));
    Ok(())
}
