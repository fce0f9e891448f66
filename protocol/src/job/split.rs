//! The rule by which training samples are dealt to the workers' slots.
//!
//! Only indices travel: every worker computes the same shards from the job's seed and the labels. An epoch and a shard
//! number are therefore enough to name a set of samples anywhere in the cluster.

use std::fmt;
use std::str::FromStr;

use crate::text_options::serde_as_text;

/// Number of shards into which a worker slot's samples of an epoch are cut.
///
/// A shard is the unit that an idle worker takes over, and the most work that two workers do twice. Sixteen make a
/// shard small compared with a slot's part of the epoch, and keep the number of cursors small as well.
pub const SHARDS_PER_SLOT: u32 = 16;
/// Most worker slots (shares of the training samples) of a run: a `u32` numbers the shards of all slots.
pub const SLOTS_MAX: usize = (u32::MAX / SHARDS_PER_SLOT) as usize;

/// Rule by which training samples are dealt to worker slots, one for each worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// Dealing of samples: every slot gets the same number of samples, of classes drawn at random.
    Random,
    /// Dealing of samples: every slot gets the same number of samples of each class.
    Equal,
    /// Dealing of samples: every slot gets classes of its own.
    Class,
}

impl Split {
    pub const ALL: [Self; 3] = [Self::Random, Self::Equal, Self::Class];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Equal => "equal",
            Self::Class => "class",
        }
    }
}

/// Error for a text that names no rule for dealing samples to workers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no split {0:?}: choose one of {known}", known = Split::ALL.map(Split::name).join(", "))]
pub struct UnknownSplit(pub String);

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Split {
    type Err = UnknownSplit;

    fn from_str(text: &str) -> Result<Self, UnknownSplit> {
        Self::ALL
            .into_iter()
            .find(|split| split.name() == text)
            .ok_or_else(|| UnknownSplit(text.to_owned()))
    }
}

serde_as_text!(Split);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_is_its_name_in_text_and_in_json() {
        for split in Split::ALL {
            assert_eq!(split.to_string().parse(), Ok(split));
            let json = serde_json::to_string(&split).unwrap();
            assert_eq!(json, format!("\"{split}\""));
            assert_eq!(serde_json::from_str::<Split>(&json).unwrap(), split);
        }
    }

    #[test]
    fn every_split_travels_in_postcard() {
        for split in Split::ALL {
            let bytes = postcard::to_stdvec(&split).unwrap();
            assert_eq!(postcard::from_bytes::<Split>(&bytes), Ok(split));
        }
    }

    #[test]
    fn an_unknown_split_is_answered_with_those_that_exist() {
        let error = "evenly".parse::<Split>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no split \"evenly\": choose one of random, equal, class"
        );
        let json = serde_json::from_str::<Split>("\"evenly\"").unwrap_err();
        assert!(json.to_string().contains("random, equal, class"), "{json}");
    }
}
