//! The whole difference of two copies, in grid steps: what a dense batch holds.

use protocol::lattice::{BATCH_STEPS_MAX, GRID, Range, RangeError, STEPS_PER_UNIT, count_of, weight_of};
use protocol::sums::Sums;

use crate::quantise::Reached;
use crate::trainer::TrainError;

/// The part of its difference that a worker lets out, in parts of 2³².
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u64);

impl Share {
    /// All of it.
    pub const ALL: Self = Self(1 << 32);

    /// That of one of so many workers whose mean counts.
    #[must_use]
    pub fn of_one_in(workers: u32) -> Self {
        let workers = u64::from(workers.max(1));
        Self(((1 << 32) + workers / 2) / workers)
    }

    /// The share of a number of steps, and the number that this is the whole share of.
    fn of(self, steps: i32) -> (i32, i32) {
        let part = self.0 as i64;
        let share = (i64::from(steps) * part + (1 << 31)) >> 32;
        let whole = ((share << 32) + share.signum() * (part / 2)) / part;
        // Neither is larger than the number itself, but for its rounding.
        (share as i32, whole as i32)
    }
}

/// Lets out a worker's share of what its own weights differ from the shared ones by, which move by it. The own ones move
/// where they would be if all others had come as far: what rounding takes stays between the two. The first weight has
/// index `offset`. An error has moved nothing.
pub fn take_share(
    own: &mut [f32],
    shared: &mut [f32],
    offset: usize,
    share: Share,
) -> Result<(Sums, Range), TrainError> {
    let whole = steps_between(Reached::exactly(own), shared)?;
    let parts: Vec<(i32, i32)> = whole.into_iter().map(|steps| share.of(steps)).collect();
    let (sums, range) = move_shared(shared, offset, parts.iter().map(|&(part, _)| part))?;
    for (own, (part, whole)) in own.iter_mut().zip(parts) {
        *own -= (whole - part) as f32 * GRID;
    }
    Ok((sums, range))
}

/// Moves shared weights to the grid points next to what a worker's own have come to, and returns by how many steps each
/// has moved. The first weight has index `offset`. A weight that is further away than a batch can say comes as near as it
/// can. An error has moved nothing.
pub fn take(own: Reached<'_>, shared: &mut [f32], offset: usize) -> Result<(Sums, Range), TrainError> {
    let steps = steps_between(own, shared)?;
    move_shared(shared, offset, steps.into_iter())
}

/// By how many steps own weights differ from shared ones, as far as a batch can say it.
fn steps_between(own: Reached<'_>, shared: &[f32]) -> Result<Vec<i32>, TrainError> {
    const FARTHEST: f64 = (BATCH_STEPS_MAX - 1) as f64;
    let between = |(at, &shared): (usize, &f32)| {
        let steps = (f64::from(own.at(at)) - f64::from(shared)) * f64::from(STEPS_PER_UNIT);
        let rounded = steps.round().clamp(-FARTHEST, FARTHEST) as i32;
        steps.is_finite().then_some(rounded).ok_or(TrainError::NotFinite)
    };
    shared.iter().enumerate().map(between).collect()
}

/// Moves shared weights by so many steps each, and says by how many.
fn move_shared(
    shared: &mut [f32],
    offset: usize,
    steps: impl Iterator<Item = i32>,
) -> Result<(Sums, Range), TrainError> {
    let mut entries = Vec::with_capacity(shared.len());
    let mut largest = 0;
    for ((at, &shared), steps) in shared.iter().enumerate().zip(steps) {
        if steps != 0 {
            let count = count_of(shared).ok_or(RangeError)? + steps;
            largest = largest.max(count.unsigned_abs());
            entries.push(((offset + at) as u32, steps));
        }
    }
    let range = Range::of_steps(largest)?;
    for &(index, steps) in &entries {
        let shared = &mut shared[index as usize - offset];
        *shared = weight_of(count_of(*shared).unwrap_or_default() + steps);
    }
    let weights = offset + shared.len();
    // They are in order, each within its window, and none is zero.
    let sums = Sums::checked(entries, weights).ok_or(RangeError)?;
    Ok((sums, range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_all_workers_add_up_and_what_rounding_takes_comes_again() {
        for workers in [1, 2, 3, 7, 10] {
            let share = Share::of_one_in(workers);
            for steps in [0, 1, -1, 2, -5, 6, 1000, -999, 1 << 23, -(1 << 23)] {
                let (part, whole) = share.of(steps);
                let n = workers as i32;
                assert!(
                    (part * n - steps).abs() <= n.midpoint(1) + 1,
                    "{steps} among {workers}: {part}"
                );
                assert!(
                    (whole - steps).abs() <= n.midpoint(1) + 1,
                    "{steps} among {workers}: {whole}"
                );
            }
        }
        assert_eq!(Share::ALL.of(-12_345), (-12_345, -12_345));
        assert_eq!(Share::of_one_in(1), Share::ALL);
    }

    #[test]
    fn workers_of_equal_shares_end_at_their_mean() {
        let own = [[0.5, -0.25, 0.0], [0.25, 0.75, 3.0 * GRID], [-0.5, 0.25, -GRID]];
        let mut taken = Vec::new();
        let mut after = own;
        for own in &mut after {
            let mut shared = [0.0; 3];
            let (sums, _) = take_share(own, &mut shared, 0, Share::of_one_in(3)).unwrap();
            taken.push(sums);
        }
        for (at, (own, before)) in after.iter_mut().zip(own).enumerate() {
            let mut shared = [0.0; 3];
            for (other, sums) in taken.iter().enumerate() {
                for &(index, steps) in sums.entries() {
                    shared[index as usize] += steps as f32 * GRID;
                    own[index as usize] += if other == at { 0.0 } else { steps as f32 * GRID };
                }
            }
            for weight in 0..3 {
                assert!((own[weight] - shared[weight]).abs() <= 2.0 * GRID, "{before:?}");
            }
            let mean = (0..3)
                .map(|worker| f64::from([[0.5, 0.25, -0.5]][0][worker] as f32))
                .sum::<f64>()
                / 3.0;
            assert!((f64::from(shared[0]) - mean).abs() < 3.0 * f64::from(GRID));
        }
    }

    #[test]
    fn shared_weights_come_as_near_as_the_grid_allows() {
        let own = [0.25 + 0.4 * GRID, -3.6 * GRID, 1.0, 0.5];
        let mut shared = [0.25, 0.0, 1.0, 0.5 + 7.0 * GRID];
        let (sums, range) = take(Reached::exactly(&own), &mut shared, 10).unwrap();
        assert_eq!(sums.entries(), [(11, -4), (13, -7)]);
        assert_eq!(range, Range::Safe);
        assert_eq!(shared, [0.25, -4.0 * GRID, 1.0, 0.5]);
        // What rounding left comes again as soon as it is half a step.
        let own = [0.25 + 0.6 * GRID, own[1], own[2], own[3]];
        assert_eq!(
            take(Reached::exactly(&own), &mut shared, 10).unwrap().0.entries(),
            [(10, 1)]
        );
    }

    #[test]
    fn weights_that_look_ahead_are_taken_where_they_have_come_to() {
        let (own, velocity) = ([1.0 - 2.0 * GRID], [4.0 * GRID]);
        let mut shared = [1.0];
        let (sums, _) = take(Reached::new(&own, 0.5, &velocity), &mut shared, 0).unwrap();
        assert_eq!(sums, Sums::default());
    }

    #[test]
    fn what_is_no_number_or_out_of_range_moves_nothing() {
        for wrong in [f32::NAN, f32::INFINITY, 16.0] {
            let mut shared = [0.25, 15.5];
            assert!(
                take(Reached::exactly(&[0.5, wrong]), &mut shared, 0).is_err(),
                "{wrong}"
            );
            assert_eq!(shared, [0.25, 15.5]);
        }
    }

    #[test]
    fn what_is_too_far_away_comes_nearer() {
        let mut shared = [-15.0];
        let (sums, _) = take(Reached::exactly(&[15.0]), &mut shared, 0).unwrap();
        assert_eq!(sums.entries(), [(0, BATCH_STEPS_MAX as i32 - 1)]);
        assert!((shared[0] - 1.0).abs() < 2.0 * GRID);
    }
}
