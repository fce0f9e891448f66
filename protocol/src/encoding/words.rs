//! `Words`: every change as a little-endian `u32`.

use super::PayloadError;

pub(super) fn encoded_len(words: &[u32]) -> usize {
    size_of_val(words)
}

pub(super) fn encode(words: &[u32], out: &mut Vec<u8>) {
    out.reserve(encoded_len(words));
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

pub(super) fn decode(payload: &[u8], count: usize, out: &mut Vec<u32>) -> Result<(), PayloadError> {
    let (words, rest) = payload.as_chunks::<4>();
    if !rest.is_empty() || words.len() != count {
        return Err(PayloadError::CountDisagrees);
    }
    out.extend(words.iter().map(|&bytes| u32::from_le_bytes(bytes)));
    Ok(())
}
