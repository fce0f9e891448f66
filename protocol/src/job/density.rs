//! The density: the fraction of a model's weights that one batch changes, as a job states it and as the rule chooses
//! it.
//!
//! A low density suffices where each weight gets many batches. With more workers each worker makes fewer steps in a
//! run, so a batch has to carry more of what the worker has learned. A batch of a small model with a few changes would
//! be mostly header.

use std::fmt;
use std::str::FromStr;

use crate::job::optimiser::Rule;
use crate::log::batch::BATCH_BYTES_MAX;
use crate::text_options::TextOptions;

/// Density as a job states it: the fraction of the weights that a batch changes, for which τ is adjusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Density {
    /// Density: chosen by the model, the optimiser, the number of workers and the number of steps.
    Auto {
        /// Most bytes that a batch may take on average, if the job sets a limit on the automatic density.
        bytes_max: Option<u32>,
    },
    /// Density: this fraction of the weights, above 0 and at most 1.
    Fraction(f64),
}

/// Fraction of weights that a batch changes where ten workers or fewer train.
const FRACTION: f64 = 0.002;
/// Number of workers above which a batch changes a larger fraction of the weights: `FRACTION` times a power of the
/// number of workers divided by `WORKERS`. The exponent is `POWER_ORTHOGONAL` for Muon (five times the fraction for 32
/// workers) and `POWER` for other update rules (twice the fraction), whose sum of batches overshoots if each changes
/// more.
const WORKERS: f64 = 10.0;
const POWER: f64 = 0.6;
const POWER_ORTHOGONAL: f64 = 1.4;
/// Number of weights that a batch changes at least, so that a small model's batches are not mostly header. On a tiny
/// model the limit `FRACTION_OF_SMALL` of the weights counts instead, because the sum of several workers' batches
/// overshoots if they change more.
const CHANGES_MIN: f64 = 400.0;
const FRACTION_OF_SMALL: f64 = 0.01;
/// Average number of times that one worker's batches are to change each weight over a whole run, at least. In a run of
/// few steps the density is raised until they do; else its weights would move too rarely to reach their values.
const CHANGES_PER_WEIGHT: f64 = 1.8;
/// Largest fraction of weights per batch that is chosen automatically, because the encoding saves too little above it.
const FRACTION_MAX: f64 = 1.0 / 16.0;
/// Smallest fraction of the weights that a batch changes. A job's limit on the bytes of a batch lowers the fraction no
/// further, because a batch with fewer changes would carry too little.
const FRACTION_MIN: f64 = 1e-5;
/// Expected bytes of a batch besides its changes.
const HEADER_BYTES: f64 = 60.0;

impl Density {
    /// Returns the fraction of weights that a batch of each of `workers` workers changes, on a model of `weights`
    /// weights, if each worker makes `steps` steps with this optimiser rule. An unknown number of steps (`None`) does
    /// not raise the fraction.
    #[must_use]
    pub fn among(self, rule: Rule, weights: usize, workers: usize, steps: Option<u64>) -> f64 {
        let (weights, workers) = (weights.max(1) as f64, workers as f64);
        match self {
            Self::Fraction(fraction) => fraction,
            Self::Auto { bytes_max } => {
                let power = match rule {
                    Rule::Muon(_) => POWER_ORTHOGONAL,
                    _ => POWER,
                };
                let by_workers = FRACTION * (workers / WORKERS).max(1.0).powf(power);
                let by_size = (CHANGES_MIN / weights).min(FRACTION_OF_SMALL);
                let by_steps = steps.map_or(0.0, |steps| CHANGES_PER_WEIGHT / steps.max(1) as f64);
                let wanted = by_workers.max(by_size).max(by_steps).min(FRACTION_MAX);
                match bytes_max {
                    Some(bytes) => within(f64::from(bytes), wanted, weights),
                    None => wanted,
                }
            }
        }
    }
}

/// Lowers a fraction of changed weights until a batch of a model of `weights` weights takes at most `budget` bytes.
fn within(budget: f64, wanted: f64, weights: f64) -> f64 {
    let mut fraction = wanted;
    while fraction > FRACTION_MIN && bytes(fraction, weights) > budget {
        fraction *= 0.99;
    }
    fraction
}

/// Returns the expected bytes of a batch that changes a fraction of `weights` weights. A Rice-coded distance takes its
/// logarithm and about half a bit, and one bit for the end of the code; the sign takes another bit.
fn bytes(fraction: f64, weights: f64) -> f64 {
    let bits = 2.5 - fraction.log2();
    HEADER_BYTES + fraction * weights * bits / 8.0
}

const BYTES_MIN: f64 = 64.0;
const FORMS: &str = "auto[:bytes=N] or a fraction";

impl FromStr for Density {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(fraction) = text.parse::<f64>() {
            return if fraction > 0.0 && fraction <= 1.0 {
                Ok(Self::Fraction(fraction))
            } else {
                Err(format!("the density must be above 0 and at most 1, not {text}"))
            };
        }
        let mut options = TextOptions::parse(text);
        if options.name != "auto" {
            return Err(format!("'{text}' is not a density; write {FORMS}"));
        }
        let bytes = options.number("bytes")?;
        options.finish(FORMS)?;
        match bytes {
            Some(bytes) if !(BYTES_MIN..=BATCH_BYTES_MAX as f64).contains(&bytes) => Err(format!(
                "bytes must be from {BYTES_MIN} to {BATCH_BYTES_MAX}, not {bytes}"
            )),
            bytes => Ok(Self::Auto {
                bytes_max: bytes.map(|bytes| bytes as u32),
            }),
        }
    }
}

impl fmt::Display for Density {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto { bytes_max: None } => f.write_str("auto"),
            Self::Auto { bytes_max: Some(bytes) } => write!(f, "auto:bytes={bytes}"),
            Self::Fraction(fraction) => write!(f, "{fraction}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::optimiser::Optimiser;

    const MODEL: usize = 468_874;

    fn auto(text: &str, weights: usize, workers: usize) -> f64 {
        let muon: Optimiser = "muon".parse().unwrap();
        let density: Density = text.parse().unwrap();
        density.among(muon.rule, weights, workers, None)
    }

    #[test]
    fn a_fraction_is_what_it_is() {
        assert_eq!(auto("0.03", MODEL, 100), 0.03);
    }

    #[test]
    fn many_workers_small_models_and_few_steps_change_more() {
        for workers in 1..=10 {
            assert_eq!(auto("auto", MODEL, workers), 0.002);
        }
        assert!((auto("auto", MODEL, 32) - 0.01).abs() < 0.001);
        let automatic = Density::Auto { bytes_max: None };
        let plain = automatic.among(Rule::Sgd, MODEL, 32, None);
        assert!((plain - 0.004).abs() < 0.0005);
        assert_eq!(auto("auto", MODEL, 1000), FRACTION_MAX);
        assert!((auto("auto", 100_000, 3) - 0.004).abs() < 1e-9);
        assert_eq!(auto("auto", 100, 3), 0.01);
        let in_steps = |steps| automatic.among(Rule::Sgd, MODEL, 3, Some(steps));
        assert_eq!((in_steps(4000), in_steps(10)), (0.002, FRACTION_MAX));
        assert!((in_steps(200) - 0.009).abs() < 1e-9);
        let tight = "auto:bytes=2000".parse::<Density>().unwrap();
        assert!(
            tight.among(Rule::Sgd, MODEL, 3, Some(10)) < 0.01,
            "the limit of bytes must win over the number of steps"
        );
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

    #[test]
    fn texts_round_trip_and_mistakes_are_named() {
        for text in ["auto", "auto:bytes=20000", "0.002", "1"] {
            assert_eq!(text.parse::<Density>().unwrap().to_string(), text);
        }
        let error = |text: &str| text.parse::<Density>().unwrap_err();
        assert!(error("0").contains("above 0 and at most 1, not 0"));
        assert!(error("NaN").contains("above 0"));
        assert!(error("much").contains("'much' is not a density; write auto"));
        assert!(error("auto:bytes=3").contains("from 64 to"));
        assert!(error("auto:byte=300").contains("no option 'byte=300'"));
    }
}
