//! Data of a run whose participants agree on how it ends.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::ids::NodeId;

/// Data of a run whose participants agree on how it ends.
pub(crate) struct Settling {
    /// Members with which this node would end the run.
    pub(crate) members: BTreeSet<NodeId>,
    /// Number of freeze orders (to take no further batches) that the exchange was given, so that an answer to an old
    /// one is not taken for the newest's.
    pub(crate) freezes: u64,
    pub(crate) freezing: bool,
    /// Fingerprints of all members' batches when a member's batches last changed.
    pub(crate) fingerprints: Vec<u64>,
    /// Time since which the members' batches have not changed, by their fingerprints.
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
