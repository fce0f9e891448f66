//! How many changes a batch is to have.
//!
//! Few suffice where each weight gets many batches. With more workers each makes fewer steps in a run, so what is learned
//! has to leave sooner. A small model's batch of a few changes would be mostly its header.

use protocol::job::Density;
use protocol::optimiser::Rule;

/// The fraction of weights that a batch changes where ten workers or fewer train.
const FRACTION: f64 = 0.002;
/// The workers from which on it grows, and the power of their number with which it does: 32 want twice as much, and five
/// times where updates are orthogonal. Others overshoot if more of them leaves at once.
const WORKERS: f64 = 10.0;
const POWER: f64 = 0.6;
const POWER_ORTHOGONAL: f64 = 1.4;
/// A batch of a small model has about so many changes, unless that is too large a fraction: more would leave at once than
/// several workers' sums bear.
const CHANGES_MIN: f64 = 400.0;
const FRACTION_OF_SMALL: f64 = 0.01;
/// Beyond this, changes are compressed by less than six.
const FRACTION_MAX: f64 = 1.0 / 16.0;
/// Fewer tell nothing; whatever the budget.
const FRACTION_MIN: f64 = 1e-5;
/// What a batch takes beside its changes, in bytes.
const HEADER_BYTES: f64 = 60.0;

/// The fraction for one of so many workers with this rule, on a model of so many weights.
pub(super) fn among(density: Density, rule: Rule, weights: usize, slots: usize) -> f64 {
    let (weights, slots) = (weights.max(1) as f64, slots as f64);
    match density {
        Density::Fraction(fraction) => fraction,
        Density::Auto { bytes_max } => {
            let power = match rule {
                Rule::Muon(_) => POWER_ORTHOGONAL,
                _ => POWER,
            };
            let by_workers = FRACTION * (slots / WORKERS).max(1.0).powf(power);
            let by_size = (CHANGES_MIN / weights).min(FRACTION_OF_SMALL);
            let wanted = by_workers.max(by_size).min(FRACTION_MAX);
            match bytes_max {
                Some(bytes) => within(f64::from(bytes), wanted, weights),
                None => wanted,
            }
        }
    }
}

/// The fraction, or as much of it as keeps to a budget of bytes.
fn within(budget: f64, wanted: f64, weights: f64) -> f64 {
    let mut fraction = wanted;
    while fraction > FRACTION_MIN && bytes(fraction, weights) > budget {
        fraction *= 0.99;
    }
    fraction
}

/// The bytes of a batch: a Rice-coded distance takes about half a bit more than its logarithm and one for the code's end,
/// and the sign takes another.
fn bytes(fraction: f64, weights: f64) -> f64 {
    let bits = 2.5 - fraction.log2();
    HEADER_BYTES + fraction * weights * bits / 8.0
}

#[cfg(test)]
mod tests {
    use protocol::optimiser::Optimiser;

    use super::*;

    const MODEL: usize = 468_874;

    fn auto(text: &str, weights: usize, slots: usize) -> f64 {
        let muon: Optimiser = "muon".parse().unwrap();
        among(text.parse().unwrap(), muon.rule, weights, slots)
    }

    #[test]
    fn a_fraction_is_what_it_is() {
        assert_eq!(auto("0.03", MODEL, 100), 0.03);
    }

    #[test]
    fn many_workers_and_small_models_change_more() {
        for slots in 1..=10 {
            assert_eq!(auto("auto", MODEL, slots), 0.002);
        }
        assert!((auto("auto", MODEL, 32) - 0.01).abs() < 0.001);
        let plain = among("auto".parse().unwrap(), Rule::Sgd, MODEL, 32);
        assert!((plain - 0.004).abs() < 0.0005);
        assert_eq!(auto("auto", MODEL, 1000), FRACTION_MAX);
        assert!((auto("auto", 100_000, 3) - 0.004).abs() < 1e-9);
        assert_eq!(auto("auto", 100, 3), 0.01);
    }

    #[test]
    fn a_budget_of_bytes_is_kept() {
        let mut last = 1.0;
        for budget in [20_000, 2_000, 800, 200] {
            let fraction = auto(&format!("auto:bytes={budget}"), MODEL, 32);
            assert!(bytes(fraction, MODEL as f64) <= f64::from(budget));
            assert!(fraction < last);
            last = fraction;
        }
        assert_eq!(auto("auto:bytes=1000000", MODEL, 3), 0.002);
    }
}
