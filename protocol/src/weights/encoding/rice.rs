//! The `Rice` encoding: the gaps between sorted indices in Rice code, with a sign bit each.
//!
//! The gaps of randomly placed changes are geometrically distributed, for which a Rice code comes within a hundredth of
//! the entropy. A gap is written as its quotient by `2^k` in unary (zeros, closed by a one), its remainder in `k` bits,
//! and the sign of the change (1 = plus); a gap of 0 is a repeat of the change before. Changes may lie far apart in the
//! model, so quotients of 20 and more are not written: 20 zeros and a one announce a whole gap in 31 bits and its sign.
//! Bits fill bytes from the low end. Payload: `k` in one byte, then the bits, then zeros up to a whole byte.

use super::PayloadError;
use super::bits::{BitReader, BitWriter};
use crate::weights::changes::ChangesError;

/// Largest parameter of the Rice code for gaps between indices: gaps are below 2^31, so a larger one would only add
/// zeros.
pub(super) const PARAMETER_MAX: u32 = 30;
/// Smallest quotient of the Rice code for which the whole gap is written instead of quotient and remainder.
const ESCAPE: u32 = 20;
/// Bits of a gap between two indices that is written whole: as many as an index has.
const GAP_BITS: u32 = 31;
/// Bits that a gap between two indices takes if it is written whole, including the sign of its change.
const ESCAPED_BITS: u32 = ESCAPE + 1 + GAP_BITS + 1;

/// Parameter of the Rice code that writes a list of changes in the fewest bits, and the number of these bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    parameter: u32,
    bits: u64,
}

impl Plan {
    /// Returns the number of bytes that the encoded changes take.
    pub(super) fn bytes(self) -> usize {
        1 + self.bits.div_ceil(8) as usize
    }
}

/// Chooses the parameter of the Rice code for a list of changes. The mean gap gives an estimate, which a few large gaps
/// raise, so exact lengths decide.
pub(super) fn plan(changes: &[u32]) -> Plan {
    let Some(last) = changes.last() else {
        return Plan { parameter: 0, bits: 0 };
    };
    let mean_gap = f64::from(last >> 1) / changes.len() as f64;
    // A Rice code halves its symbols' probability every 2^k, a geometric distribution every mean·ln 2.
    let near = (mean_gap * std::f64::consts::LN_2).max(1.0).log2().round() as u32;
    let mut best = plan_with(changes, near.min(PARAMETER_MAX));
    for step in [-1, 1] {
        while let Some(parameter) = best.parameter.checked_add_signed(step).filter(|&k| k <= PARAMETER_MAX) {
            let next = plan_with(changes, parameter);
            if next.bits >= best.bits {
                break;
            }
            best = next;
        }
    }
    best
}

fn plan_with(changes: &[u32], parameter: u32) -> Plan {
    let bits = |gap: u32| match gap >> parameter {
        quotient if quotient < ESCAPE => quotient + parameter + 2,
        _ => ESCAPED_BITS,
    };
    let first = changes.first().map_or(0, |first| u64::from(bits(first >> 1)));
    let later = changes
        .windows(2)
        .map(|pair| u64::from(bits((pair[1] >> 1) - (pair[0] >> 1))));
    Plan {
        parameter,
        bits: first + later.sum::<u64>(),
    }
}

pub(super) fn encode(changes: &[u32], plan: Plan, out: &mut Vec<u8>) {
    if changes.is_empty() {
        return;
    }
    let parameter = plan.parameter;
    let start = out.len();
    out.push(parameter as u8);
    // Room for the whole payload and for the last store of eight bytes, which may reach past its end.
    out.resize(start + plan.bytes() + 8, 0);
    let mut bits = BitWriter::new(&mut out[start + 1..]);
    let mut before = 0;
    for &change in changes {
        let index = change >> 1;
        let gap = index - before;
        before = index;
        let plus = u64::from(change & 1);
        let quotient = gap >> parameter;
        if quotient < ESCAPE {
            let remainder = u64::from(gap) & ((1 << parameter) - 1);
            let code = (plus << parameter | remainder) << 1 | 1;
            bits.append(code << quotient, quotient + parameter + 2);
        } else {
            let code = (plus << GAP_BITS | u64::from(gap)) << 1 | 1;
            bits.append(code << ESCAPE, ESCAPED_BITS);
        }
    }
    out.truncate(start + plan.bytes());
}

pub(super) fn decode(payload: &[u8], count: usize, weights: usize, out: &mut Vec<u32>) -> Result<(), PayloadError> {
    let (&parameter, bytes) = payload.split_first().ok_or(PayloadError::Truncated)?;
    let parameter = u32::from(parameter);
    if parameter > PARAMETER_MAX {
        return Err(PayloadError::BadParameter);
    }
    // Every change takes at least `parameter + 2` bits (a whole gap takes more), so a claim of more changes is refused
    // before memory is reserved for them.
    if count as u64 * u64::from(parameter + 2) > bytes.len() as u64 * 8 {
        return Err(PayloadError::Truncated);
    }
    out.reserve(count);
    let mut bits = BitReader::new(bytes);
    let mut index = 0u64;
    for _ in 0..count {
        let window = bits.window();
        let zeros = window.trailing_zeros();
        let (high, width) = match zeros {
            ..ESCAPE => (u64::from(zeros) << parameter, parameter),
            ESCAPE => (0, GAP_BITS),
            _ => return Err(PayloadError::Truncated),
        };
        bits.skip(zeros + width + 2);
        let field = window >> (zeros + 1);
        index += high | field & ((1 << width) - 1);
        if index >= weights as u64 {
            return Err(ChangesError::IndexOutOfRange { index, weights }.into());
        }
        out.push((index as u32) << 1 | (field >> width & 1) as u32);
    }
    bits.finish()
}
