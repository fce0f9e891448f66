//! The strategy by which nodes exchange what they learn.

use std::fmt;

use super::Density;
use crate::lattice::Tau;
use crate::text_options::{TextOptions, within};

/// An exchange strategy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exchange {
    /// Changes of ±τ after every step, to everybody, without waiting (Strom 2015).
    Strom(Threshold),
    /// The whole difference every so many steps.
    Rounds(Rounds),
}

/// An exchange in rounds: every so many steps a worker lets out the whole difference that it has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// How many steps a round has.
    pub every: u32,
    /// Whether workers wait for each other's rounds, and share the differences out: their mean counts. Without waiting all
    /// of each counts, whenever it comes.
    pub waits: bool,
}

/// What decides τ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// τ follows this fraction of weights changed in a batch.
    Density(Density),
    /// τ is fixed.
    Fixed(Tau),
}

/// Steps of a round when the job leaves it open: a dense batch then costs less than the steps before it.
const EVERY: f64 = 16.0;
const EVERY_MAX: f64 = 65_536.0;

const FORMS: &str = "strom, mesh[:every=N][,async]";

impl Exchange {
    /// The strategy that a text names. `threshold` is what the job says of τ, for the one that has a τ.
    pub(super) fn from_text(text: &str, threshold: Threshold) -> Result<Self, String> {
        let mut options = TextOptions::parse(text);
        let exchange = match options.name {
            "strom" => Self::Strom(threshold),
            "mesh" => {
                let every = options.number("every")?.unwrap_or(EVERY).round();
                within("every", every, 1.0..=EVERY_MAX, "a number of steps from 1 to 65536")?;
                Self::Rounds(Rounds {
                    every: every as u32,
                    waits: !options.flag("async"),
                })
            }
            unknown => return Err(format!("there is no exchange '{unknown}'; there is: {FORMS}")),
        };
        options.finish(FORMS)?;
        Ok(exchange)
    }

    /// Whether workers wait for each other's rounds.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self, Self::Rounds(Rounds { waits: true, .. }))
    }

    /// What decides τ, where there is one.
    #[must_use]
    pub fn threshold(&self) -> Option<Threshold> {
        match self {
            Self::Strom(threshold) => Some(*threshold),
            Self::Rounds(_) => None,
        }
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strom(_) => f.write_str("strom"),
            Self::Rounds(Rounds { every, waits }) => {
                let waits = if *waits { "" } else { ",async" };
                write!(f, "mesh:every={every}{waits}")
            }
        }
    }
}
