//! Names of runs, origins and nodes: 64-bit numbers that their creator draws at random. This crate only carries them.

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
    /// Name of a run: one training job, from `StartTraining` to the saved model.
    RunId
}

impl RunId {
    /// Returns the name of the run that repeats this run's job after it has diverged. All nodes derive the same name.
    #[must_use]
    pub fn successor(self) -> Self {
        const SUCCESSOR: u64 = u64::from_be_bytes(*b"once mor");
        Self(splitmix64(self.0 ^ SUCCESSOR))
    }
}

id! {
    /// Name of an origin: one life of one worker. A worker that restarts is a new origin and numbers its batches from 1
    /// again.
    OriginId
}

id! {
    /// Name of a node: one communicator process with its workers. Drawn when the process starts.
    NodeId
}
