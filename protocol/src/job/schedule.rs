//! Learning-rate schedules: a factor on the learning rate as a function of the run's progress.
//!
//! Progress is the share of the run's samples that are in applied batches, so that all nodes agree on it without a
//! clock.

use std::f64::consts::PI;
use std::fmt;
use std::str::FromStr;

use crate::text_options::{TextOptions, serde_as_text, within};

/// Learning-rate curve with a warm-up; as a text, `linear`, `cosine:warmup=0.05` or `step:every=0.3,factor=0.1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Curve by which the learning rate falls over a run.
    pub curve: Curve,
    /// Share of the run in which the learning rate rises linearly from near zero.
    pub warmup: f64,
}

/// Curve of a learning rate over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Curve {
    /// Curve of the learning rate: it stays the same.
    Constant,
    /// Curve of the learning rate: it falls in a straight line to zero.
    Linear,
    /// Curve of the learning rate: it falls along half a cosine to zero.
    Cosine,
    /// Curve of the learning rate: it falls in steps, by the same factor each time.
    Step {
        /// Share of the run between two falls of the learning rate.
        every: f64,
        /// Factor on the learning rate at each of its falls.
        factor: f64,
    },
}

impl Schedule {
    /// Returns the factor on the learning rate at a progress of the run, from 0 (beginning) to 1 (end).
    #[must_use]
    pub fn factor(&self, progress: f64) -> f64 {
        let progress = progress.clamp(0.0, 1.0);
        let fallen = match self.curve {
            Curve::Constant => 1.0,
            Curve::Linear => 1.0 - progress,
            Curve::Cosine => f64::midpoint(1.0, (PI * progress).cos()),
            Curve::Step { every, factor } => factor.powf((progress / every).floor()),
        };
        fallen * self.warmup_factor(progress)
    }

    fn warmup_factor(&self, progress: f64) -> f64 {
        // At exactly zero, the first step would not move the weights; a hundredth is small enough to warm up from.
        if progress < self.warmup {
            (progress / self.warmup).max(0.01)
        } else {
            1.0
        }
    }
}

const FORMS: &str =
    "constant, linear, cosine, step:every=SHARE,factor=F, each with warmup=SHARE if wanted (linear:warmup=0.05)";

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut options = TextOptions::parse(text);
        let warmup = options.number("warmup")?.unwrap_or(0.0);
        let warmup = within("warmup", warmup, 0.0..1.0, "at least 0 and below 1")?;
        let curve = match options.name {
            "constant" => Curve::Constant,
            "linear" => Curve::Linear,
            "cosine" => Curve::Cosine,
            "step" => {
                let every = options.number("every")?.unwrap_or(0.3);
                let factor = options.number("factor")?.unwrap_or(0.1);
                if every <= 0.0 {
                    return Err(format!("every must be above 0, not {every}"));
                }
                Curve::Step {
                    every,
                    factor: within("factor", factor, 0.0..=1.0, "between 0 and 1")?,
                }
            }
            unknown => {
                return Err(format!("there is no schedule '{unknown}'; use one of: {FORMS}"));
            }
        };
        options.finish(FORMS)?;
        Ok(Self { curve, warmup })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = Vec::new();
        let name = match self.curve {
            Curve::Constant => "constant",
            Curve::Linear => "linear",
            Curve::Cosine => "cosine",
            Curve::Step { every, factor } => {
                options.push(format!("every={every},factor={factor}"));
                "step"
            }
        };
        if self.warmup > 0.0 {
            options.push(format!("warmup={}", self.warmup));
        }
        let colon = if options.is_empty() { "" } else { ":" };
        write!(f, "{name}{colon}{}", options.join(","))
    }
}

serde_as_text!(Schedule);

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(text: &str) -> [f64; 5] {
        let schedule: Schedule = text.parse().unwrap();
        [0.0, 0.25, 0.5, 0.75, 1.0].map(|progress| (schedule.factor(progress) * 1e6).round() / 1e6)
    }

    #[test]
    fn curves() {
        assert_eq!(factors("constant"), [1.0; 5]);
        assert_eq!(factors("linear"), [1.0, 0.75, 0.5, 0.25, 0.0]);
        assert_eq!(factors("cosine"), [1.0, 0.853_553, 0.5, 0.146_447, 0.0]);
        assert_eq!(factors("step:every=0.5,factor=0.1"), [1.0, 1.0, 0.1, 0.1, 0.01]);
        assert_eq!(factors("constant:warmup=0.5"), [0.01, 0.5, 1.0, 1.0, 1.0]);
        assert_eq!(factors("linear:warmup=0.5"), [0.01, 0.375, 0.5, 0.25, 0.0]);
    }

    #[test]
    fn texts_round_trip() {
        for text in [
            "constant",
            "linear",
            "cosine:warmup=0.1",
            "step:every=0.25,factor=0.5",
            "step:every=0.25,factor=0.5,warmup=0.01",
        ] {
            assert_eq!(text.parse::<Schedule>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<Schedule>().unwrap_err();
        assert!(error("lin").contains("no schedule 'lin'"));
        assert!(error("linear:warmup=1").contains("below 1"));
        assert!(error("linear:every=1").contains("no option 'every=1'"));
        assert!(error("step:every=0").contains("above 0"));
    }
}
