//! The encoding of sums: the index and the steps of each weight that moves over many batches.
//!
//! Gaps between sorted indices and magnitudes are Rice-coded, each with its own parameter, with a sign bit (1 = plus)
//! after the magnitude. Large symbols are announced by 20 zeros and a one and written whole, in 31 bits. Payload: both
//! parameters in a byte each, then the bits, then zeros up to a whole byte.

use super::PayloadError;
use super::bits::{BitReader, BitWriter};
use super::rice::PARAMETER_MAX;
use crate::weights::changes::ChangesError;

const ESCAPE: u32 = 20;
const WHOLE_BITS: u32 = 31;
const WHOLE_MAX: u64 = (1 << WHOLE_BITS) - 1;

/// Rice code for one kind of symbol: gaps between indices, or magnitudes.
#[derive(Clone, Copy)]
struct Code {
    parameter: u32,
}

impl Code {
    /// Chooses the parameter `k` of a Rice code for `count` symbols of this sum, so that the code suits symbols of this
    /// mean: it halves its symbols' probability every 2^k, a geometric distribution every mean·ln 2.
    fn fitted(sum: u64, count: usize) -> Self {
        let mean = sum as f64 / count.max(1) as f64;
        let parameter = (mean * std::f64::consts::LN_2).max(1.0).log2().round() as u32;
        Self {
            parameter: parameter.min(PARAMETER_MAX),
        }
    }

    fn read(byte: u8) -> Result<Self, PayloadError> {
        let parameter = u32::from(byte);
        if parameter > PARAMETER_MAX {
            return Err(PayloadError::BadParameter);
        }
        Ok(Self { parameter })
    }

    fn bits(self, symbol: u64) -> u64 {
        let quotient = symbol >> self.parameter;
        if quotient < u64::from(ESCAPE) {
            quotient + u64::from(self.parameter) + 1
        } else {
            u64::from(ESCAPE + 1 + WHOLE_BITS)
        }
    }

    fn write(self, symbol: u64, bits: &mut BitWriter) {
        let quotient = (symbol >> self.parameter) as u32;
        if quotient < ESCAPE {
            let remainder = symbol & ((1 << self.parameter) - 1);
            bits.append((remainder << 1 | 1) << quotient, quotient + self.parameter + 1);
        } else {
            bits.append((symbol << 1 | 1) << ESCAPE, ESCAPE + 1 + WHOLE_BITS);
        }
    }

    fn take(self, bits: &mut BitReader) -> Result<u64, PayloadError> {
        let window = bits.window();
        let zeros = window.trailing_zeros();
        let (high, width) = match zeros {
            ..ESCAPE => (u64::from(zeros) << self.parameter, self.parameter),
            ESCAPE => (0, WHOLE_BITS),
            _ => return Err(PayloadError::Truncated),
        };
        bits.skip(zeros + 1 + width);
        Ok(high | window >> (zeros + 1) & ((1 << width) - 1))
    }
}

/// Returns for each weight that moves the symbols to be encoded: the gap to the index before, the magnitude and the
/// sign of its movement. Gaps and magnitudes start at 0.
fn symbols(entries: &[(u32, i32)]) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
    let mut next = 0;
    entries.iter().map(move |&(index, steps)| {
        let gap = u64::from(index) - next;
        next = u64::from(index) + 1;
        (gap, u64::from(steps.unsigned_abs()) - 1, steps > 0)
    })
}

/// Appends the encoded payload of a batch of sums: the index of each weight that moves, and the number of steps by
/// which it moves; sorted by index and without zeros.
pub(crate) fn encode(entries: &[(u32, i32)], out: &mut Vec<u8>) {
    let (gaps, magnitudes) = symbols(entries).fold((0, 0), |(gaps, magnitudes), (gap, magnitude, _)| {
        (gaps + gap, magnitudes + magnitude)
    });
    let (gap_code, size_code) = (
        Code::fitted(gaps, entries.len()),
        Code::fitted(magnitudes, entries.len()),
    );
    let total: u64 = symbols(entries)
        .map(|(gap, magnitude, _)| gap_code.bits(gap) + size_code.bits(magnitude) + 1)
        .sum();
    out.extend([gap_code.parameter as u8, size_code.parameter as u8]);
    let start = out.len();
    let bytes = total.div_ceil(8) as usize;
    // Room for the last store of eight bytes, which may reach past the end.
    out.resize(start + bytes + 8, 0);
    let mut bits = BitWriter::new(&mut out[start..]);
    for (gap, magnitude, plus) in symbols(entries) {
        gap_code.write(gap, &mut bits);
        size_code.write(magnitude, &mut bits);
        bits.append(u64::from(plus), 1);
    }
    out.truncate(start + bytes);
}

/// Decodes the payload of a batch of sums: the index of each weight that moves, and the number of steps by which it
/// moves. Checks that they are sorted, in range and without zeros.
pub(crate) fn decode(payload: &[u8], count: usize, weights: usize) -> Result<Vec<(u32, i32)>, PayloadError> {
    let [gap_code, size_code, bytes @ ..] = payload else {
        return Err(PayloadError::Truncated);
    };
    let (gap_code, size_code) = (Code::read(*gap_code)?, Code::read(*size_code)?);
    // Fewest bits of an entry: a claim of more entries than the bytes can hold is refused before memory is reserved for
    // them.
    let least = u64::from(gap_code.parameter.min(WHOLE_BITS) + size_code.parameter.min(WHOLE_BITS) + 3);
    if count as u64 * least > bytes.len() as u64 * 8 {
        return Err(PayloadError::Truncated);
    }
    // No weight has two entries.
    if count > weights {
        return Err(PayloadError::CountDisagrees);
    }
    let mut entries = Vec::with_capacity(count);
    let mut bits = BitReader::new(bytes);
    let mut next = 0u64;
    for _ in 0..count {
        let index = next + gap_code.take(&mut bits)?;
        if index >= weights as u64 {
            return Err(ChangesError::IndexOutOfRange { index, weights }.into());
        }
        next = index + 1;
        let magnitude = size_code.take(&mut bits)?;
        if magnitude >= WHOLE_MAX {
            return Err(ChangesError::MovesTooFar(index as u32).into());
        }
        let plus = bits.window() & 1 == 1;
        bits.skip(1);
        let steps = magnitude as i32 + 1;
        entries.push((index as u32, if plus { steps } else { -steps }));
    }
    bits.finish()?;
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(entries: &[(u32, i32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(entries, &mut bytes);
        bytes
    }

    #[test]
    fn extremes_come_back() {
        let entries = [(0, i32::MAX), (1, -i32::MAX), (2, 1), ((1 << 31) - 1, -1)];
        assert_eq!(decode(&encoded(&entries), 4, 1 << 31), Ok(entries.to_vec()));
        assert_eq!(decode(&encoded(&[]), 0, 5), Ok(Vec::new()));
    }

    #[test]
    fn false_claims_are_refused() {
        let bytes = encoded(&[(3, 7), (5, -9)]);
        assert!(decode(&bytes, 2, 5).is_err(), "an index out of range must be refused");
        assert!(
            decode(&bytes, 3, 9).is_err(),
            "a count above the number of entries must be refused"
        );
        assert!(
            decode(&bytes, 1, 9).is_err(),
            "a count below the number of entries must be refused"
        );
        assert!(decode(&bytes[..bytes.len() - 1], 2, 9).is_err());
        assert!(decode(&[31, 0, 0], 0, 9).is_err());
        assert!(decode(&bytes, usize::MAX >> 8, 9).is_err());
    }

    proptest! {
        #[test]
        fn entries_come_back(map in proptest::collection::btree_map(0u32..5000, -100_000i32..100_000, 0..300)) {
            let entries: Vec<(u32, i32)> = map.into_iter().filter(|&(_, steps)| steps != 0).collect();
            prop_assert_eq!(decode(&encoded(&entries), entries.len(), 5000), Ok(entries));
        }

        #[test]
        fn noise_is_no_danger(bytes: Vec<u8>, count in 0usize..1000) {
            let _ = decode(&bytes, count, 4000);
        }
    }
}
