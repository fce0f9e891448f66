//! The checksum at the end of a batch and of a range. It tells damage, which is an accident, from a lie, whose checksum is
//! right.

const CRC_BYTES: usize = 4;

/// Closes what was written to `out` from `start` on with its checksum.
pub(crate) fn close(out: &mut Vec<u8>, start: usize) {
    let crc = crc32fast::hash(&out[start..]);
    out.extend(crc.to_le_bytes());
}

/// What was closed with a checksum, without it; none if that does not match.
pub(crate) fn open(bytes: &[u8]) -> Option<&[u8]> {
    let (body, crc) = bytes.split_last_chunk::<CRC_BYTES>()?;
    (crc32fast::hash(body) == u32::from_le_bytes(*crc)).then_some(body)
}

/// Whether a batch or a range still has its checksum: a copy in memory may have lost a bit since it was made.
#[must_use]
pub fn is_intact(bytes: &[u8]) -> bool {
    open(bytes).is_some()
}
