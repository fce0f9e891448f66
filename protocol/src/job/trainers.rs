//! The number of workers that train at the same time, as a job states it.

use std::fmt;
use std::str::FromStr;

/// Number of workers that train at the same time, as a job states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trainers {
    /// Number of workers that train at the same time: all.
    #[default]
    All,
    /// Number of workers that train at the same time: at most this many, those of the lowest slots (worker numbers).
    /// The others apply their batches, and one of them takes over when a training worker is lost.
    AtMost(u32),
}

impl Trainers {
    /// Returns the number of workers that train if the run has `workers` workers.
    #[must_use]
    pub fn among(self, workers: usize) -> usize {
        match self {
            Self::All => workers,
            Self::AtMost(most) => workers.min(most as usize),
        }
    }
}

impl FromStr for Trainers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("all", _) => Ok(Self::All),
            (_, Ok(most)) if most > 0 => Ok(Self::AtMost(most)),
            _ => Err(format!(
                "the value must be 'all' or a number of workers above 0, not '{text}'"
            )),
        }
    }
}

impl fmt::Display for Trainers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::AtMost(most) => most.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip_and_mistakes_are_named() {
        for text in ["all", "1", "12"] {
            assert_eq!(text.parse::<Trainers>().unwrap().to_string(), text);
        }
        for text in ["0", "-1", "some", ""] {
            assert!(text.parse::<Trainers>().unwrap_err().contains("'all' or a number"));
        }
        assert_eq!((Trainers::All.among(3), Trainers::AtMost(1).among(3)), (3, 1));
        assert_eq!(Trainers::AtMost(5).among(3), 3);
    }
}
