//! The whole difference of both copies, in lattice steps: the payload of a dense batch.

use multiversion::multiversion;
use protocol::weights::contribution::Contribution;
use protocol::weights::dense::Dense;
use protocol::weights::lattice::{BATCH_STEPS_MAX, LATTICE_STEP, Range, RangeError, STEPS_PER_UNIT};

use crate::trainer::TrainError;
use crate::trainer::quantise::Reached;

/// Takes a worker's contribution (a fraction of the difference between its own and the shared weights), to be sent, and
/// adds it to the shared weights. Subtracts from the own weights the contributions that the other workers are expected
/// to make; rounding errors stay in the difference. The first weight has index `offset`. A call that fails has moved
/// nothing.
pub fn take_contribution(
    own: &mut [f32],
    shared: &mut [f32],
    offset: usize,
    contribution: Contribution,
) -> Result<(Dense, Range), TrainError> {
    let mut steps = vec![0; shared.len()];
    let (farthest, largest) = contributions_between(own, shared, contribution.fraction() as f32, &mut steps);
    if !farthest.is_finite() {
        return Err(TrainError::NotFinite);
    }
    let range = Range::of_weight(largest)?;
    let dense = Dense::checked(offset as u32, steps, offset + shared.len()).ok_or(RangeError)?;
    take_back(own, shared, dense.steps(), contribution.inverse());
    Ok((dense, range))
}

/// Converts a residual (own minus shared weights) to a form that can be sent: multiples of the step between two
/// neighbouring values of a shared weight. The first weight has index `offset`. Returns `None` if a value is not a
/// number or too large for a batch.
pub fn of_residual(residual: &[f32], offset: usize) -> Option<Dense> {
    let mut steps = vec![0; residual.len()];
    let zeros = vec![0.0; residual.len()];
    all_between(residual, &zeros, &mut steps)
        .then(|| Dense::checked(offset as u32, steps, offset + residual.len()))
        .flatten()
}

/// Largest contribution of one weight to a round, in steps between two neighbouring values of a shared weight; the
/// remainder stays for later rounds. Up to here, 32-bit floats represent all integers and halves, so that rounding is
/// exact.
const SHARE_MAX: f32 = 4_000_000.0;

/// Multiplies the differences between own and shared weights by `contribution`, and rounds the products to multiples of
/// the step between two neighbouring values of a shared weight. Returns the largest product, in such steps, and the
/// largest magnitude of a shared weight after its contribution.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn contributions_between(own: &[f32], shared: &[f32], contribution: f32, contributions: &mut [i32]) -> (f32, f32) {
    const SIGN: u32 = 1 << 31;
    /// A float so large that adding to it rounds off fractions, and the lowest bits of the sum are the integer.
    const ROUNDER: f32 = 12_582_912.0;
    let scale = STEPS_PER_UNIT as f32 * contribution;
    let (mut farthest, mut largest) = (0, 0);
    for ((own, shared), to) in own.iter().zip(shared).zip(contributions) {
        let steps = (own - shared) * scale;
        // The bits of positive floats are in the order of the floats, and NaN is beyond all of them.
        farthest = farthest.max(steps.to_bits() & !SIGN);
        let rounded = steps.clamp(-SHARE_MAX, SHARE_MAX) + ROUNDER;
        *to = rounded.to_bits() as i32 - ROUNDER.to_bits() as i32;
        largest = largest.max((shared + (rounded - ROUNDER) * LATTICE_STEP).to_bits() & !SIGN);
    }
    (f32::from_bits(farthest), f32::from_bits(largest))
}

/// Moves shared weights to the possible values nearest to a worker's own weights. Returns by how many steps between
/// neighbouring values each has moved. The first weight has index `offset`. A weight that is further away than a batch
/// can encode moves as far as one can. A call that fails has moved nothing.
pub fn take(own: Reached<'_>, shared: &mut [f32], offset: usize) -> Result<(Dense, Range), TrainError> {
    let mut steps = vec![0; shared.len()];
    if !all_between(&own.values(), shared, &mut steps) {
        return Err(TrainError::NotFinite);
    }
    move_shared(shared, offset, steps)
}

/// Returns the difference of an own and a shared weight as a multiple of the step between two neighbouring values of a
/// shared weight, limited to the range of a batch; `None` if it is not finite.
#[inline]
fn steps_between(own: f32, shared: f32) -> Option<i32> {
    const FARTHEST: f64 = (BATCH_STEPS_MAX - 1) as f64;
    let steps = (f64::from(own) - f64::from(shared)) * f64::from(STEPS_PER_UNIT);
    let rounded = steps.round_ties_even().clamp(-FARTHEST, FARTHEST) as i32;
    steps.is_finite().then_some(rounded)
}

/// Computes [`steps_between`] for many weights. Returns false if a value is not finite.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn all_between(own: &[f32], shared: &[f32], steps: &mut [i32]) -> bool {
    let mut finite = true;
    for ((own, shared), steps) in own.iter().zip(shared).zip(steps) {
        let between = steps_between(*own, *shared);
        finite &= between.is_some();
        *steps = between.unwrap_or_default();
    }
    finite
}

/// Moves a worker's contributions from its difference into the shared weights: adds them to the shared weights, and
/// subtracts from the own ones the contributions that the other workers are expected to make.
fn take_back(own: &mut [f32], shared: &mut [f32], contributions: &[i32], inverse: f64) {
    // Equal contributions make `inverse` a whole number, up to the rounding of the contribution.
    let whole = inverse.round();
    if (inverse - whole).abs() < 1e-6 {
        take_back_equal(own, shared, contributions, (whole - 1.0) as f32);
    } else {
        take_back_any(own, shared, contributions, inverse);
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn take_back_equal(own: &mut [f32], shared: &mut [f32], contributions: &[i32], others: f32) {
    for ((own, shared), &contribution) in own.iter_mut().zip(shared).zip(contributions) {
        let contribution = contribution as f32;
        *shared += contribution * LATTICE_STEP;
        *own -= contribution * others * LATTICE_STEP;
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn take_back_any(own: &mut [f32], shared: &mut [f32], contributions: &[i32], inverse: f64) {
    for ((own, shared), &contribution) in own.iter_mut().zip(shared).zip(contributions) {
        let whole = (f64::from(contribution) * inverse).round_ties_even();
        *shared += contribution as f32 * LATTICE_STEP;
        *own -= (whole - f64::from(contribution)) as f32 * LATTICE_STEP;
    }
}

/// Returns the largest magnitude that a weight would have after it is moved by its number of steps between neighbouring
/// values, so that the range can be checked before anything moves.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn largest_moved(shared: &[f32], steps: &[i32]) -> f32 {
    const SIGN: u32 = 1 << 31;
    let mut largest = 0;
    for (shared, &steps) in shared.iter().zip(steps) {
        // The bits of positive floats are in the order of the floats.
        largest = largest.max((shared + steps as f32 * LATTICE_STEP).to_bits() & !SIGN);
    }
    f32::from_bits(largest)
}

/// Moves weights by multiples of the step between two neighbouring values of a shared weight. The sums are exact,
/// because all of them are within the range.
#[multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn move_all(shared: &mut [f32], steps: &[i32]) {
    for (shared, &steps) in shared.iter_mut().zip(steps) {
        *shared += steps as f32 * LATTICE_STEP;
    }
}

/// Moves shared weights by multiples of the step between two neighbouring values, or none of them if one weight would
/// leave the range. The first weight has index `offset`.
fn move_shared(shared: &mut [f32], offset: usize, steps: Vec<i32>) -> Result<(Dense, Range), TrainError> {
    let range = Range::of_weight(largest_moved(shared, &steps))?;
    move_all(shared, &steps);
    let weights = offset + shared.len();
    let dense = Dense::checked(offset as u32, steps, weights).ok_or(RangeError)?;
    Ok((dense, range))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that workers of equal contributions end at their mean: each emits its contribution and applies the
    /// others', and all reach the mean, up to rounding errors, which stay.
    #[test]
    fn workers_of_equal_shares_end_at_their_mean() {
        assert_eq!(
            at_their_mean(|own, shared| take_contribution(own, shared, 0, third()).unwrap().0),
            Ok(())
        );
    }

    #[test]
    fn a_share_that_is_taken_out_twice_is_found() {
        let twice = |own: &mut [f32], shared: &mut [f32]| {
            let dense = take_contribution(own, shared, 0, third()).unwrap().0;
            take_back_equal(own, &mut shared.to_vec(), dense.steps(), 2.0);
            dense
        };
        let found = at_their_mean(twice).unwrap_err();
        assert!(found.contains("residual"), "{found}");
    }

    fn third() -> Contribution {
        Contribution::of_one_in(3)
    }

    fn at_their_mean(take_contribution: fn(&mut [f32], &mut [f32]) -> Dense) -> Result<(), String> {
        let before = [
            [0.5, -0.25, 0.0],
            [0.25, 0.75, 3.0 * LATTICE_STEP],
            [-0.125, 0.25, -LATTICE_STEP],
        ];
        let mut own = before;
        let mut shared = [[0.0; 3]; 3];
        let taken: Vec<Dense> = (0..3)
            .map(|at| take_contribution(&mut own[at], &mut shared[at]))
            .collect();
        for at in 0..3 {
            for other in (0..3).filter(|other| *other != at) {
                taken[other].apply_to_both(&mut shared[at], &mut own[at]).unwrap();
            }
        }
        for weight in 0..3 {
            let mean = before.iter().map(|own| own[weight]).sum::<f32>() / 3.0;
            let mut lost = 0.0;
            for at in 0..3 {
                let stays = own[at][weight] - shared[at][weight];
                if shared[at][weight] != shared[0][weight] {
                    return Err(format!("the shared weights differ: {shared:?}"));
                }
                if stays.abs() > 2.0 * LATTICE_STEP {
                    return Err(format!("a residual of {stays} is left"));
                }
                lost += stays;
            }
            // Shared weights and remaining residuals add up to everything learned.
            let all = shared[0][weight] + lost / 3.0;
            if (all - mean).abs() >= 0.1 * LATTICE_STEP {
                return Err(format!(
                    "shared weight and mean residual add up to {all} instead of {mean}"
                ));
            }
        }
        Ok(())
    }

    #[test]
    fn shared_weights_come_as_near_as_the_lattice_allows() {
        let own = [0.25 + 0.4 * LATTICE_STEP, -3.6 * LATTICE_STEP, 1.0, 0.5];
        let mut shared = [0.25, 0.0, 1.0, 0.5 + 7.0 * LATTICE_STEP];
        let (dense, range) = take(Reached::exactly(&own), &mut shared, 10).unwrap();
        assert_eq!((dense.first(), dense.steps()), (10, &[0, -4, 0, -7][..]));
        assert_eq!(range, Range::Safe);
        assert_eq!(shared, [0.25, -4.0 * LATTICE_STEP, 1.0, 0.5]);
        // The rounding error leaves as soon as it is half a step.
        let own = [0.25 + 0.6 * LATTICE_STEP, own[1], own[2], own[3]];
        assert_eq!(
            take(Reached::exactly(&own), &mut shared, 10).unwrap().0.steps(),
            [1, 0, 0, 0]
        );
    }

    #[test]
    fn weights_that_look_ahead_are_taken_where_they_have_come_to() {
        let (own, velocity) = ([1.0 - 2.0 * LATTICE_STEP], [4.0 * LATTICE_STEP]);
        let mut shared = [1.0];
        let (dense, _) = take(Reached::new(&own, 0.5, &velocity), &mut shared, 0).unwrap();
        assert_eq!(dense.steps(), [0]);
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
        let (dense, _) = take(Reached::exactly(&[15.0]), &mut shared, 0).unwrap();
        assert_eq!(dense.steps(), [BATCH_STEPS_MAX as i32 - 1]);
        assert!((shared[0] - 1.0).abs() < 2.0 * LATTICE_STEP);
    }
}
