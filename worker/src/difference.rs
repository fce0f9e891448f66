//! The whole difference of two copies, in grid steps: what a dense batch holds.

use protocol::lattice::{BATCH_STEPS_MAX, Range, RangeError, STEPS_PER_UNIT, count_of, weight_of};
use protocol::sums::Sums;

use crate::quantise::Reached;
use crate::trainer::TrainError;

/// Moves shared weights to the grid points next to what a worker's own have come to, and returns by how many steps each
/// has moved. The first weight has index `offset`. A weight that is further away than a batch can say comes as near as it
/// can. An error has moved nothing.
pub fn take(own: Reached<'_>, shared: &mut [f32], offset: usize) -> Result<(Sums, Range), TrainError> {
    const FARTHEST: f64 = (BATCH_STEPS_MAX - 1) as f64;
    let mut entries = Vec::with_capacity(shared.len());
    let mut largest = 0;
    for (at, &shared) in shared.iter().enumerate() {
        let steps = (f64::from(own.at(at)) - f64::from(shared)) * f64::from(STEPS_PER_UNIT);
        if !steps.is_finite() {
            return Err(TrainError::NotFinite);
        }
        let steps = steps.round().clamp(-FARTHEST, FARTHEST) as i32;
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
    use protocol::lattice::GRID;

    use super::*;

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
