//! What nodes say to each other about batches.

use std::sync::Arc;

use protocol::frontier::Frontier;
use protocol::ids::{NodeId, OriginId};
use serde::{Deserialize, Serialize};

/// An encoded batch with its name. The bytes are shared: a broadcast encodes once, whatever the number of peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Whose batch it is.
    pub(super) origin: OriginId,
    /// Its number there.
    pub(super) sequence: u64,
    /// The batch as it goes on the wire.
    pub(super) bytes: Arc<[u8]>,
}

/// What is known of an origin. It is told before the origin's first batch, on the same link, so that no batch comes
/// from nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginInfo {
    /// Its name.
    pub origin: OriginId,
    /// The node that its worker belongs to.
    pub home: NodeId,
    /// The worker's place in the run.
    pub slot: u32,
    /// Its last sequence, once there will be no more: it was closed, or its worker is gone.
    pub ended: Option<u64>,
}

/// One message on the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A word about an origin.
    Origin(OriginInfo),
    /// A batch, as encoded by its worker.
    Batch(Arc<[u8]>),
    /// What the sender has applied. Said on every link once origins are told, and then again whenever it has grown.
    Have(Frontier),
}
