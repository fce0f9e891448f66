//! What nodes say to each other about batches.

use std::sync::Arc;

use protocol::frontier::Frontier;
use protocol::ids::OriginId;

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

/// One message on the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A batch, as encoded by its worker.
    Batch(Arc<[u8]>),
    /// What the sender has applied. The first message on every link, and then again whenever it has grown.
    Have(Frontier),
}
