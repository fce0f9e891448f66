//! `Rice`: the gaps between sorted indices in Rice code, a sign bit each.
//!
//! The gaps of randomly placed changes are geometrically distributed, for which a Rice code comes within a hundredth
//! of the entropy. A gap is written as its quotient by `2^k` in unary (zeros, closed by a one), its remainder in `k`
//! bits, and the sign of the change (1 = plus); a gap of 0 is a repeat of the change before. Bits fill bytes from the
//! low end. Payload: `k` in one byte, the first index in four (changes may start far from index 0, and a unary number
//! must not have to say so), then the bits, then zeros up to a whole byte.

use super::PayloadError;
use crate::changes::ChangesError;

/// Gaps are below 2^31, so a larger parameter only adds zeros.
pub(super) const PARAMETER_MAX: u32 = 30;
/// What one append to the bit buffer may hold: the buffer keeps up to 7 bits that do not fill a byte yet.
const APPEND_BITS_MAX: u32 = 57;
/// The parameter and the first index.
const HEAD_BYTES: usize = 5;

/// The parameter that writes a list of changes in the fewest bits, and how many those are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    parameter: u32,
    bits: u64,
}

impl Plan {
    /// The length of the payload.
    pub(super) fn bytes(self) -> usize {
        HEAD_BYTES + self.bits.div_ceil(8) as usize
    }
}

/// Fits the parameter: the mean gap says nearly which, and the exact lengths of its neighbours settle it.
pub(super) fn plan(words: &[u32]) -> Plan {
    let (Some(first), Some(last)) = (words.first(), words.last()) else {
        return Plan { parameter: 0, bits: 0 };
    };
    let mean_gap = f64::from((last >> 1) - (first >> 1)) / words.len() as f64;
    // A Rice code halves its symbols' probability every 2^k, a geometric one every mean·ln 2.
    let near = (mean_gap * std::f64::consts::LN_2).max(1.0).log2().round() as u32;
    (near.saturating_sub(1)..=(near + 1).min(PARAMETER_MAX))
        .map(|parameter| {
            let quotients: u64 = words
                .windows(2)
                .map(|pair| u64::from(((pair[1] >> 1) - (pair[0] >> 1)) >> parameter))
                .sum();
            let bits = quotients + words.len() as u64 * u64::from(parameter + 2);
            Plan { parameter, bits }
        })
        .min_by_key(|plan| plan.bits)
        .unwrap_or(Plan { parameter: 0, bits: 0 })
}

pub(super) fn encode(words: &[u32], plan: Plan, out: &mut Vec<u8>) {
    let Some(first) = words.first() else {
        return;
    };
    let parameter = plan.parameter;
    let start = out.len();
    out.push(parameter as u8);
    let mut before = first >> 1;
    out.extend_from_slice(&before.to_le_bytes());
    // Room for the whole payload and for the last store of eight bytes, which may reach past its end.
    out.resize(start + plan.bytes() + 8, 0);
    let mut bits = BitWriter {
        bytes: &mut out[start + HEAD_BYTES..],
        position: 0,
        buffer: 0,
        filled: 0,
    };
    for &word in words {
        let index = word >> 1;
        let gap = index - before;
        before = index;
        let mut quotient = gap >> parameter;
        while quotient + parameter + 2 > APPEND_BITS_MAX {
            let zeros = quotient.min(APPEND_BITS_MAX);
            bits.append(0, zeros);
            quotient -= zeros;
        }
        let remainder = u64::from(gap) & ((1 << parameter) - 1);
        let code = (u64::from(word & 1) << parameter | remainder) << 1 | 1;
        bits.append(code << quotient, quotient + parameter + 2);
    }
    out.truncate(start + plan.bytes());
}

/// Appends bits from the low end, eight bytes at a store.
struct BitWriter<'a> {
    bytes: &'a mut [u8],
    position: usize,
    buffer: u64,
    filled: u32,
}

impl BitWriter<'_> {
    #[inline(always)]
    fn append(&mut self, value: u64, bits: u32) {
        self.buffer |= value << self.filled;
        self.filled += bits;
        self.bytes[self.position..self.position + 8].copy_from_slice(&self.buffer.to_le_bytes());
        // Whole bytes are done with; the rest stays at the low end of the buffer.
        let whole = self.filled / 8;
        self.position += whole as usize;
        self.buffer = if whole == 8 { 0 } else { self.buffer >> (8 * whole) };
        self.filled %= 8;
    }
}

pub(super) fn decode(payload: &[u8], count: usize, weights: usize, out: &mut Vec<u32>) -> Result<(), PayloadError> {
    let (&[parameter, first @ ..], bytes) = payload
        .split_first_chunk::<HEAD_BYTES>()
        .ok_or(PayloadError::Truncated)?;
    let parameter = u32::from(parameter);
    if parameter > PARAMETER_MAX {
        return Err(PayloadError::BadParameter);
    }
    // Every change takes at least `parameter + 2` bits: a claim of more is refused before memory is taken for it.
    if count as u64 * u64::from(parameter + 2) > bytes.len() as u64 * 8 {
        return Err(PayloadError::Truncated);
    }
    out.reserve(count);
    let mut bits = BitReader { bytes, position: 0 };
    let mask = (1u64 << parameter) - 1;
    let mut index = u64::from(u32::from_le_bytes(first));
    for _ in 0..count {
        let window = bits.window();
        let zeros = window.trailing_zeros();
        let (quotient, field) = if zeros + parameter + 2 <= APPEND_BITS_MAX {
            bits.position += (zeros + parameter + 2) as usize;
            (u64::from(zeros), window >> (zeros + 1))
        } else {
            let quotient = bits.long_unary(weights as u64 >> parameter)?;
            let window = bits.window();
            bits.position += (parameter + 1) as usize;
            (quotient, window)
        };
        index += quotient << parameter | field & mask;
        if index >= weights as u64 {
            return Err(ChangesError::IndexOutOfRange { index, weights }.into());
        }
        out.push((index as u32) << 1 | (field >> parameter & 1) as u32);
    }
    bits.finish()
}

/// Reads bits from the low end; beyond the end there are zeros.
struct BitReader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl BitReader<'_> {
    /// The next 57 bits at least.
    #[inline(always)]
    fn window(&self) -> u64 {
        let byte = self.position / 8;
        let word = match self.bytes.get(byte..byte + 8) {
            Some(eight) => u64::from_le_bytes(eight.try_into().unwrap_or_default()),
            None => self.last_window(byte),
        };
        word >> (self.position % 8)
    }

    #[cold]
    fn last_window(&self, byte: usize) -> u64 {
        let mut eight = [0; 8];
        let rest = self.bytes.get(byte..).unwrap_or_default();
        eight[..rest.len()].copy_from_slice(rest);
        u64::from_le_bytes(eight)
    }

    /// Reads a unary number too long for one window, and the one that closes it.
    #[cold]
    fn long_unary(&mut self, max: u64) -> Result<u64, PayloadError> {
        let mut zeros = 0;
        while self.position < self.bytes.len() * 8 {
            let run = self.window().trailing_zeros().min(APPEND_BITS_MAX);
            self.position += run as usize;
            zeros += u64::from(run);
            if zeros > max {
                return Err(PayloadError::Truncated);
            }
            if run < APPEND_BITS_MAX {
                self.position += 1;
                return Ok(zeros);
            }
        }
        Err(PayloadError::Truncated)
    }

    /// All that may follow the last change are zeros that fill its byte.
    fn finish(self) -> Result<(), PayloadError> {
        let rest = (self.bytes.len() * 8)
            .checked_sub(self.position)
            .ok_or(PayloadError::Truncated)?;
        if rest >= 8 || self.window() != 0 {
            return Err(PayloadError::TrailingBits);
        }
        Ok(())
    }
}
