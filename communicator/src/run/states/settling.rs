//! What a run has while its participants agree on how it ends.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::ids::NodeId;

/// A run that ends.
pub(crate) struct Settling {
    /// With whom this node would end it.
    pub(crate) members: BTreeSet<NodeId>,
    /// Counts how often the exchange was told to take no further batches, so that an old answer is not taken for the
    /// newest's.
    pub(crate) freezes: u64,
    pub(crate) freezing: bool,
    /// What all stood at, and since when that has not changed.
    pub(crate) fingerprints: Vec<u64>,
    pub(crate) unmoved: Duration,
}

impl Settling {
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            members: BTreeSet::new(),
            freezes: 0,
            freezing: false,
            fingerprints: Vec::new(),
            unmoved: now,
        }
    }
}
