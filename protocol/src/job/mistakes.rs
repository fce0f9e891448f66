//! Mistakes in a job, collected while it is checked.

use std::fmt::Display;
use std::str::FromStr;

use super::{Density, Exchange, JobError, Keep, Threshold};
use crate::lattice::{STEPS_PER_UNIT, Tau};

/// Collects mistakes, so that people see all of them at once.
pub(super) struct Mistakes(pub(super) Vec<JobError>);

impl Mistakes {
    pub(super) fn add<T>(&mut self, key: &'static str, message: String) -> Option<T> {
        self.0.push(JobError { key, message });
        None
    }

    pub(super) fn parse<T: FromStr<Err: Display>>(&mut self, key: &'static str, text: Option<String>) -> Option<T> {
        match text.unwrap_or_default().parse() {
            Ok(value) => Some(value),
            Err(error) => self.add(key, error.to_string()),
        }
    }

    pub(super) fn whole(&mut self, key: &'static str, value: Option<u32>, max: u32) -> u32 {
        let value = value.unwrap_or_default();
        if !(1..=max).contains(&value) {
            self.add::<()>(
                key,
                format!("the value must be a whole number from 1 to {max}, not {value}"),
            );
        }
        value
    }

    pub(super) fn optional(
        &mut self,
        key: &'static str,
        value: Option<f64>,
        range: std::ops::RangeInclusive<f64>,
        says: &str,
    ) -> Option<f64> {
        match value {
            Some(value) if !range.contains(&value) => self.add(key, format!("the value must be {says}, not {value}")),
            value => value,
        }
    }

    /// The strategy. `says_threshold` is the key that speaks of τ in the job, and means nothing to a strategy without one.
    pub(super) fn exchange(
        &mut self,
        text: &str,
        threshold: Option<Threshold>,
        says_threshold: Option<&'static str>,
    ) -> Option<Exchange> {
        // A mistake in the threshold is reported already; the text may hold another.
        let checked = threshold.unwrap_or(Threshold::Density(Density::Fraction(1.0)));
        match (Exchange::from_text(text, checked), says_threshold) {
            (Err(error), _) => self.add("exchange", error),
            (Ok(exchange), Some(key)) if exchange.threshold().is_none() => {
                self.add(key, format!("the exchange {exchange} has no τ: leave {key} out"))
            }
            (Ok(exchange), _) => threshold.map(|_| exchange),
        }
    }

    /// What a network that is spread over nodes does not take.
    pub(super) fn spread(&mut self, from: bool, keep: Keep, target: bool) {
        let whole = "needs the whole network on one node, but --exchange layers splits the network over nodes: leave \
             this setting out";
        for (key, is_said) in [
            ("from", from),
            ("keep", keep == Keep::Best),
            ("target_accuracy", target),
        ] {
            if is_said {
                self.add::<()>(key, format!("{key} {whole}"));
            }
        }
    }

    pub(super) fn tau(&mut self, tau: f64) -> Option<Threshold> {
        let smallest = 1.0 / f64::from(STEPS_PER_UNIT);
        if tau >= smallest && tau <= f64::from(Tau::MAX.value()) {
            Some(Threshold::Fixed(Tau::nearest(tau)))
        } else {
            self.add(
                "tau",
                format!("tau must be at least 2^-20 (about {smallest:.1e}) and below 16, not {tau}"),
            )
        }
    }
}
