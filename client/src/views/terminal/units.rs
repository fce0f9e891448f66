//! Formats numbers in few characters for the terminal view.

use protocol::stats::Unit;

use crate::output::quantity;

/// Text for a number that is not known.
pub(super) const UNKNOWN: &str = "–";

const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

/// Formats a number with two or three digits and a unit prefix, in at most four characters.
pub(super) fn short(value: f64) -> String {
    with_unit(value, 1)
}

/// Formats a number with three digits and a unit prefix, in at most five characters.
pub(super) fn precise(value: f64) -> String {
    with_unit(value, 2)
}

/// Formats a number with a unit prefix, with `decimals` digits after the point less one for each further digit before
/// it.
fn with_unit(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return UNKNOWN.into();
    }
    let mut value = value;
    let mut unit = 0;
    // A number that would be rounded to 1000 goes to the next unit.
    while value.abs() >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let whole = unit == 0 && value.fract() == 0.0;
    let decimals = if whole { 0 } else { decimals_within(value, decimals) };
    format!("{value:.decimals$}{}", UNITS[unit])
}

/// Formats a loss in at most five characters.
pub(super) fn loss(value: f64) -> String {
    if value.is_finite() && value.abs() < 99.995 {
        let decimals = decimals_within(value, 3);
        format!("{value:.decimals$}")
    } else {
        precise(value)
    }
}

/// Formats a fraction as a percentage with up to `decimals` decimals: four characters for two decimals, three for none.
pub(super) fn percent(share: f64, decimals: usize) -> String {
    let value = share * 100.0;
    if !value.is_finite() {
        return UNKNOWN.into();
    }
    let decimals = decimals_within(value, decimals);
    format!("{value:.decimals$}")
}

/// Formats τ, the distance by which one change moves a weight, in six characters.
pub(super) fn tau(value: f64) -> String {
    if value > 0.0 && value.is_finite() {
        format!("{value:.1e}")
    } else {
        UNKNOWN.into()
    }
}

/// Formats a figure for a table's column, without its unit.
pub(super) fn in_column(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Samples | Unit::SamplesPerSecond => precise(value),
        Unit::Loss => loss(value),
        Unit::Quality | Unit::Density => percent(value, 2),
        Unit::Share => percent(value, 0),
        Unit::WeightChange => tau(value),
        _ => short(value),
    }
}

/// Formats a figure with its unit, for the page of one node.
pub(super) fn with_its_unit(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Samples | Unit::SamplesPerSecond | Unit::Batches | Unit::Rounds => {
            format!("{} {}", precise(value), unit.name())
        }
        Unit::Quality | Unit::Density | Unit::Share => format!("{} %", percent(value, 2)),
        Unit::Loss | Unit::Target | Unit::Norm => loss(value),
        Unit::Bytes => quantity::bytes(value),
        Unit::Seconds => quantity::seconds(value),
        Unit::WeightChange => tau(value),
        Unit::Cores | Unit::Gpus => precise(value),
    }
}

/// Formats a value, or returns the text for an unknown number.
pub(super) fn known<T>(value: Option<T>, format: impl Fn(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.into(), format)
}

/// Returns the number of decimals with which a number keeps its width: `decimals`, less one for every digit before the
/// point beyond the first, including a digit that rounding adds.
fn decimals_within(value: f64, decimals: usize) -> usize {
    let mut decimals = decimals;
    let mut limit = 10.0;
    while decimals > 0 && value.abs() + 0.5 / 10f64.powi(decimals as i32) >= limit {
        decimals -= 1;
        limit *= 10.0;
    }
    decimals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_units() {
        let shown = [
            0.0, 7.0, 7.25, 42.4, 999.4, 999.6, 1_234.0, 9_960.0, 35_000.0, 514e6, 2.5e18,
        ];
        assert_eq!(
            shown.map(short),
            [
                "0", "7", "7.2", "42", "999", "1.0k", "1.2k", "10k", "35k", "514M", "2.5E"
            ]
        );
        assert_eq!(
            shown.map(precise),
            [
                "0", "7", "7.25", "42.4", "999", "1.00k", "1.23k", "9.96k", "35.0k", "514M", "2.50E"
            ]
        );
        assert_eq!(short(f64::NAN), UNKNOWN);
        assert_eq!(short(f64::INFINITY), UNKNOWN);
    }

    #[test]
    fn everything_keeps_to_its_width() {
        for exponent in -80..180 {
            for digits in [1.0, 1.49, 9.949, 9.96, 9.9996] {
                let value = digits * 10f64.powf(f64::from(exponent) / 10.0);
                let width = |text: String| text.chars().count();
                assert!(width(short(value)) <= 4, "{value}");
                assert!(width(precise(value)) <= 5, "{value}");
                assert!(width(loss(value)) <= 5, "{value}");
            }
        }
    }

    #[test]
    fn losses_have_three_decimals_while_they_are_small() {
        let shown = [0.12345, 2.3046, 9.9996, 42.194, 1_234.5, f64::NAN].map(loss);
        assert_eq!(shown, ["0.123", "2.305", "10.00", "42.19", "1.23k", UNKNOWN]);
    }

    #[test]
    fn shares_are_percents() {
        assert_eq!(
            [0.002, 0.0625, 0.5, 1.0].map(|share| percent(share, 2)),
            ["0.20", "6.25", "50.0", "100"]
        );
        assert_eq!([0.0, 0.126, 1.0].map(|share| percent(share, 0)), ["0", "13", "100"]);
        assert_eq!(percent(f64::NAN, 1), UNKNOWN);
    }

    #[test]
    fn thresholds_are_powers_of_ten() {
        assert_eq!([1.21e-3, 0.5, 0.0].map(tau), ["1.2e-3", "5.0e-1", UNKNOWN]);
    }
}
