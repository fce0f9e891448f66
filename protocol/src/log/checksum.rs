//! The CRC-32 at the end of each batch, merged range and bundle. It reveals accidental damage, but no forgery: a
//! hostile sender computes a valid checksum.

const CRC_BYTES: usize = 4;

/// Appends a checksum over all bytes of `out` from `start` on.
pub(crate) fn close(out: &mut Vec<u8>, start: usize) {
    let crc = crc32fast::hash(&out[start..]);
    out.extend(crc.to_le_bytes());
}

/// Checks the checksum at the end of the bytes and returns the bytes before it; `None` if the checksum does not match.
pub(crate) fn open(bytes: &[u8]) -> Option<&[u8]> {
    let (body, crc) = bytes.split_last_chunk::<CRC_BYTES>()?;
    (crc32fast::hash(body) == u32::from_le_bytes(*crc)).then_some(body)
}

/// True if an encoded batch or merged range still has a valid checksum. If not, its copy in memory has lost a bit.
#[must_use]
pub fn is_intact(bytes: &[u8]) -> bool {
    open(bytes).is_some()
}
