//! Names of runs and origins. The words are drawn by whoever creates one; this crate only carries them.

use std::fmt;

use serde::{Deserialize, Serialize};

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

id! {
    /// One incarnation of one worker: a worker that restarts is a new origin, and numbers its batches from 1 again.
    OriginId
}

id! {
    /// One process that takes part in a cluster: a communicator and its workers. Drawn when it starts.
    NodeId
}
