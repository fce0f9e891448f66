//! Names of runs and origins. The words are drawn by whoever creates one; this crate only carries them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rng::splitmix64;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
    };
}

id! {
    /// One training job, from `StartTraining` to the saved model.
    RunId
}

impl RunId {
    /// The name of the run that trains this one once more. All nodes derive the same.
    #[must_use]
    pub fn successor(self) -> Self {
        const SUCCESSOR: u64 = u64::from_be_bytes(*b"once mor");
        Self(splitmix64(self.0 ^ SUCCESSOR))
    }
}

id! {
    /// One incarnation of one worker: a worker that restarts is a new origin, and numbers its batches from 1 again.
    OriginId
}

id! {
    /// One process that takes part in a cluster: a communicator and its workers. Drawn when it starts.
    NodeId
}
