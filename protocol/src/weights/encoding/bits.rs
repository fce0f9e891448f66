//! Reading and writing of bits in bytes, from the low end, for codes whose symbols take at most 57 bits.

use super::PayloadError;

/// Writer that appends bits from the low end of each byte and stores eight bytes at a time.
pub(super) struct BitWriter<'a> {
    bytes: &'a mut [u8],
    position: usize,
    buffer: u64,
    filled: u32,
}

impl<'a> BitWriter<'a> {
    /// Creates a writer into zeroed bytes, which must be seven bytes longer than the bits that will be written.
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        Self {
            bytes,
            position: 0,
            buffer: 0,
            filled: 0,
        }
    }

    /// Appends `value`, which has `bits` bits, at most 57.
    #[inline(always)]
    pub(super) fn append(&mut self, value: u64, bits: u32) {
        self.buffer |= value << self.filled;
        self.filled += bits;
        self.bytes[self.position..self.position + 8].copy_from_slice(&self.buffer.to_le_bytes());
        // Whole bytes are finished; the remaining bits stay at the low end of the buffer.
        let whole = self.filled / 8;
        self.position += whole as usize;
        self.buffer = if whole == 8 { 0 } else { self.buffer >> (8 * whole) };
        self.filled %= 8;
    }
}

/// Reader of bits from the low end of each byte. Beyond the end it reads zeros.
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> BitReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Advances the reader by `bits` bits.
    #[inline(always)]
    pub(super) fn skip(&mut self, bits: u32) {
        self.position += bits as usize;
    }

    /// Returns at least the next 57 bits, without advancing the reader. Beyond the end there are zeros.
    #[inline(always)]
    pub(super) fn window(&self) -> u64 {
        let byte = self.position / 8;
        let change = match self.bytes.get(byte..byte + 8) {
            Some(eight) => u64::from_le_bytes(eight.try_into().unwrap_or_default()),
            None => self.last_window(byte),
        };
        change >> (self.position % 8)
    }

    #[cold]
    fn last_window(&self, byte: usize) -> u64 {
        let mut eight = [0; 8];
        let rest = self.bytes.get(byte..).unwrap_or_default();
        eight[..rest.len()].copy_from_slice(rest);
        u64::from_le_bytes(eight)
    }

    /// Checks that everything was read: what remains must be fewer than eight bits, all zero, which fill the last byte.
    pub(super) fn finish(self) -> Result<(), PayloadError> {
        let rest = (self.bytes.len() * 8)
            .checked_sub(self.position)
            .ok_or(PayloadError::Truncated)?;
        if rest >= 8 || self.window() != 0 {
            return Err(PayloadError::TrailingBits);
        }
        Ok(())
    }
}
