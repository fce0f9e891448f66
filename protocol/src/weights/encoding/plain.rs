//! The encoding of dense steps: a number of the same width for every weight of a window. It is for batches in which
//! nearly all weights move, and decodes at the speed of memory.
//!
//! Payload: the width in bytes (1, 2 or 4), the first weight's index and the number of exceptions as `u32`; the
//! exceptions, which are numbers that need more width, each as its place in the window and its number; then all
//! numbers, with zeros for the exceptions. Everything is little-endian.

use multiversion::multiversion;

use super::PayloadError;
use crate::weights::changes::ChangesError;
use crate::weights::dense::{Dense, farthest};
use crate::weights::lattice::BATCH_STEPS_MAX;

/// Bytes before the numbers of encoded neighbouring weights: the numbers' width, the first weight's index and the
/// number of exceptions (numbers that need more than the width).
const HEAD_BYTES: usize = 9;
/// Bytes of an exception (a number that needs more than the common width) in encoded neighbouring weights: its place
/// among them, and the number.
const EXCEPTION_BYTES: usize = 8;

/// Bytes that an exception (a number that needs more than the common width) counts for in the choice of that width. It
/// is more than it takes, because exceptions are slow: they are written and read one by one.
const EXCEPTION_COST: usize = 24;

/// Number of bytes in which the movement of each of some neighbouring weights is written. Numbers that need more are
/// written apart, as exceptions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    One,
    Two,
    Four,
}

impl Width {
    fn bytes(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    fn of(bytes: u8) -> Option<Self> {
        match bytes {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            4 => Some(Self::Four),
            _ => None,
        }
    }

    fn holds(self, steps: i32) -> bool {
        match self {
            Self::One => i8::try_from(steps).is_ok(),
            Self::Two => i16::try_from(steps).is_ok(),
            Self::Four => true,
        }
    }
}

/// Returns the number of weights whose movement needs more than one byte, and the number of those whose movement needs
/// more than two.
#[multiversion(targets("x86_64+avx512f+avx512bw", "x86_64+avx2"))]
fn count_wide(steps: &[i32]) -> (u32, u32) {
    let (mut one, mut two) = (0, 0);
    for &steps in steps {
        one += u32::from(steps != i32::from(steps as i8));
        two += u32::from(steps != i32::from(steps as i16));
    }
    (one, two)
}

/// Appends each weight's number of steps as one byte. Numbers that need more are zeros here, and are written apart as
/// exceptions.
#[multiversion(targets("x86_64+avx512f+avx512bw", "x86_64+avx2"))]
fn write_ones(steps: &[i32], out: &mut Vec<u8>) {
    out.extend(steps.iter().map(|&steps| {
        let narrow = steps as i8;
        if i32::from(narrow) == steps { narrow as u8 } else { 0 }
    }));
}

/// Writes each weight's number of steps as two bytes. Numbers that need more are zeros here, and are written apart as
/// exceptions.
#[multiversion(targets("x86_64+avx512f+avx512bw", "x86_64+avx2"))]
fn write_twos(steps: &[i32], out: &mut [[u8; 2]]) {
    for (bytes, &steps) in out.iter_mut().zip(steps) {
        let narrow = steps as i16;
        *bytes = if i32::from(narrow) == steps { narrow } else { 0 }.to_le_bytes();
    }
}

/// Reads the movement of neighbouring weights: for each, a multiple of the smallest step in one byte.
#[multiversion(targets("x86_64+avx512f+avx512bw", "x86_64+avx2"))]
fn read_ones(bytes: &[u8], steps: &mut Vec<i32>) {
    steps.extend(bytes.iter().map(|&byte| i32::from(byte as i8)));
}

/// Reads the movement of neighbouring weights: for each, a multiple of the smallest step in two bytes.
#[multiversion(targets("x86_64+avx512f+avx512bw", "x86_64+avx2"))]
fn read_twos(bytes: &[[u8; 2]], steps: &mut Vec<i32>) {
    steps.extend(bytes.iter().map(|&bytes| i32::from(i16::from_le_bytes(bytes))));
}

/// Appends the encoded movement of the weights from `first` on, in the number of bytes per weight that costs least.
/// `steps` has each weight's multiple of the smallest step.
pub(crate) fn encode(first: u32, steps: &[i32], out: &mut Vec<u8>) {
    let (beyond_one, beyond_two) = count_wide(steps);
    let widths = [(Width::One, beyond_one), (Width::Two, beyond_two), (Width::Four, 0)];
    let cost = |(width, exceptions): &(Width, u32)| width.bytes() * steps.len() + EXCEPTION_COST * *exceptions as usize;
    let chosen = widths.into_iter().min_by_key(cost);
    let (width, exceptions) = chosen.unwrap_or((Width::Four, 0));
    out.reserve(HEAD_BYTES + width.bytes() * steps.len() + EXCEPTION_BYTES * exceptions as usize);
    out.push(width.bytes() as u8);
    out.extend(first.to_le_bytes());
    out.extend(exceptions.to_le_bytes());
    if exceptions > 0 {
        write_exceptions(steps, width, out);
    }
    if width == Width::One {
        return write_ones(steps, out);
    }
    let start = out.len();
    out.resize(start + width.bytes() * steps.len(), 0);
    let numbers = &mut out[start..];
    if width == Width::Two {
        return write_twos(steps, numbers.as_chunks_mut().0);
    }
    for (bytes, steps) in numbers.as_chunks_mut().0.iter_mut().zip(steps) {
        *bytes = steps.to_le_bytes();
    }
}

/// Appends the exceptions: the movements of weights that need more bytes than `width`, each with its place. They are
/// rare, so whole blocks of weights without one are skipped at a time.
#[multiversion(targets("x86_64+avx512f+avx512bw", "x86_64+avx2"))]
fn write_exceptions(steps: &[i32], width: Width, out: &mut Vec<u8>) {
    const BLOCK: usize = 16;
    // Numbers that fit lie from -half to half - 1, so after a shift by half one comparison suffices.
    let half = if width == Width::One { 1 << 7 } else { 1 << 15 };
    for (block, steps) in steps.chunks(BLOCK).enumerate() {
        let is_wide = |steps: i32| steps.wrapping_add(half) as u32 >= 2 * half as u32;
        let any = steps.iter().fold(false, |any, &steps| any | is_wide(steps));
        if !any {
            continue;
        }
        let places = (block * BLOCK) as u32..;
        for (place, steps) in places.zip(steps).filter(|&(_, &steps)| is_wide(steps)) {
            out.extend(place.to_le_bytes());
            out.extend(steps.to_le_bytes());
        }
    }
}

/// Decodes the movement of `count` neighbouring weights (each by a multiple of the smallest step), for a model of
/// `weights` weights.
pub(crate) fn decode(payload: &[u8], count: usize, weights: usize) -> Result<Dense, PayloadError> {
    let (head, rest) = payload.split_at_checked(HEAD_BYTES).ok_or(PayloadError::Truncated)?;
    let width = Width::of(head[0]).ok_or(PayloadError::BadParameter)?;
    let (first, exceptions) = (change(&head[1..5]), change(&head[5..9]) as usize);
    // Both lengths are checked before memory is reserved.
    let exceptions = exceptions.checked_mul(EXCEPTION_BYTES).ok_or(PayloadError::Truncated)?;
    let (exceptions, numbers) = rest.split_at_checked(exceptions).ok_or(PayloadError::Truncated)?;
    if Some(numbers.len()) != count.checked_mul(width.bytes()) {
        return Err(PayloadError::CountDisagrees);
    }
    let mut steps = Vec::with_capacity(count);
    match width {
        Width::One => read_ones(numbers, &mut steps),
        Width::Two => read_twos(numbers.as_chunks().0, &mut steps),
        Width::Four => steps.extend(numbers.as_chunks().0.iter().copied().map(i32::from_le_bytes)),
    }
    let end = u64::from(first) + count as u64;
    if end > weights as u64 {
        return Err(ChangesError::IndexOutOfRange {
            index: end - 1,
            weights,
        }
        .into());
    }
    let too_far = |place: usize| ChangesError::MovesTooFar(first + place as u32);
    let mut next = 0;
    for exception in exceptions.chunks_exact(EXCEPTION_BYTES) {
        let (place, number) = (change(&exception[..4]) as usize, change(&exception[4..]) as i32);
        // Exceptions must be in order, distinct and wider than the others, so that the same steps have one form.
        if place < next || width.holds(number) {
            return Err(PayloadError::Padded);
        }
        next = place + 1;
        let steps = steps.get_mut(place).filter(|steps| **steps == 0);
        let steps = steps.ok_or(PayloadError::Padded)?;
        if number.unsigned_abs() >= BATCH_STEPS_MAX {
            return Err(too_far(place).into());
        }
        *steps = number;
    }
    // Numbers of one or two bytes cannot move a weight too far.
    if width == Width::Four && farthest(&steps) >= BATCH_STEPS_MAX {
        let far = steps.iter().position(|steps| steps.unsigned_abs() >= BATCH_STEPS_MAX);
        return Err(too_far(far.unwrap_or_default()).into());
    }
    Ok(Dense::trusted(first, steps))
}

fn change(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |change, &byte| change << 8 | u32::from(byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WEIGHTS: usize = 100;

    fn encoded(first: u32, steps: &[i32]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(first, steps, &mut out);
        out
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            first in 0..50u32,
            steps in proptest::collection::vec(
                prop_oneof![8 => -100..100i32, 1 => -40_000..40_000i32, 1 => -16_777_215..16_777_216i32],
                0..50,
            ),
        ) {
            let bytes = encoded(first, &steps);
            let found = decode(&bytes, steps.len(), WEIGHTS).unwrap();
            prop_assert_eq!((found.first(), found.steps()), (first, &steps[..]));
            prop_assert!(decode(&bytes, steps.len() + 1, WEIGHTS).is_err());
            prop_assert!(decode(&bytes[..bytes.len() - 1], steps.len(), WEIGHTS).is_err());
        }

        #[test]
        fn whatever_is_read_is_valid(bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0..64usize) {
            if let Ok(dense) = decode(&bytes, count, WEIGHTS) {
                prop_assert!(Dense::checked(dense.first(), dense.steps().to_vec(), WEIGHTS).is_some());
                prop_assert_eq!(dense.steps().len(), count);
            }
        }
    }

    #[test]
    fn numbers_take_the_width_that_is_shortest_in_all() {
        let mut steps = [5; 50];
        assert_eq!(encoded(0, &steps).len(), HEAD_BYTES + 50);
        steps[7] = 1000;
        assert_eq!(encoded(0, &steps).len(), HEAD_BYTES + 50 + EXCEPTION_BYTES);
        steps.fill(1000);
        steps[7] = 100_000;
        assert_eq!(encoded(0, &steps).len(), HEAD_BYTES + 100 + EXCEPTION_BYTES);
        steps.fill(100_000);
        assert_eq!(encoded(0, &steps).len(), HEAD_BYTES + 200);
    }

    #[test]
    fn the_same_steps_have_one_form_and_too_much_is_refused() {
        let mut steps = [1; 40];
        steps[4] = 700;
        let good = encoded(3, &steps);
        assert_eq!(good[0], 1);
        assert!(decode(&good, 40, WEIGHTS).is_ok());
        assert!(
            decode(&good, 40, 42).is_err(),
            "steps beyond the last weight must be refused"
        );
        let wrongs: [(usize, &[u8]); 4] = [
            (0, &[3]),
            // A place outside the window; one that has a number already; a number that needs no exception.
            (9, &[40]),
            (9, &[5]),
            (13, &[5, 0]),
        ];
        for (at, bytes) in wrongs {
            let mut wrong = good.clone();
            wrong[at..at + bytes.len()].copy_from_slice(bytes);
            assert!(decode(&wrong, 40, WEIGHTS).is_err(), "{at}");
        }
        let mut far = encoded(7, &[100_000; 3]);
        far[13..17].copy_from_slice(&(1i32 << 24).to_le_bytes());
        assert_eq!(decode(&far, 3, WEIGHTS), Err(ChangesError::MovesTooFar(8).into()));
        // Number of the exception at the fifth place.
        let mut far = good;
        far[HEAD_BYTES + 4..][..4].copy_from_slice(&i32::MIN.to_le_bytes());
        assert_eq!(decode(&far, 40, WEIGHTS), Err(ChangesError::MovesTooFar(7).into()));
    }
}
