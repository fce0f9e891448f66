//! Protocol violations: the reasons for which a peer is quarantined.

use protocol::ids::OriginId;
use protocol::log::batch::BatchError;
use thiserror::Error;

use crate::ledger::{LedgerError, SnapshotError};

/// A protocol violation: something that no honest member of the run sends. Its sender is quarantined.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Breach {
    /// A peer sent a batch, a merged range or a bundle that is invalid.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A peer sent a batch that this node's ledger (its replica) refuses, such as a batch of another run.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A peer sent a snapshot that is not a ledger (a whole replica) of the run.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A peer sent a snapshot that cannot be decoded.
    #[error("the peer's snapshot cannot be decoded")]
    UnreadableSnapshot,
    /// A snapshot contains batches of an origin (a worker's stream of batches) that was never announced.
    #[error("the peer's snapshot contains origin {0}, which is unknown in this run")]
    UnknownOriginInSnapshot(OriginId),
    /// A snapshot and this node have equally many batches of an origin (a worker's stream of batches), but different
    /// ones.
    #[error("the peer's snapshot contains other batches of origin {0} than this node has applied")]
    OtherBatchesInSnapshot(OriginId),
    /// A batch belongs to an origin (a worker's stream of batches) that was never announced.
    #[error("origin {0} is unknown in this run")]
    UnknownOrigin(OriginId),
    /// A peer sent a batch in the name of this node's own worker, which has not made that batch.
    #[error("the peer sent batch {sequence} of this node's own origin {origin}, which was never made")]
    NeverMade { origin: OriginId, sequence: u64 },
    /// The origin's node sent a batch that this node already has with other contents.
    #[error("the peer sent batch {sequence} of origin {origin} with other contents than this node has")]
    OtherContents { origin: OriginId, sequence: u64 },
    /// The peer announces a parcel (a large item in pieces) of this many bytes, which exceeds the limit.
    #[error("the peer announces a parcel of {0} bytes, which exceeds the limit")]
    OversizeParcel(u64),
    /// The peer announces more origins (workers' streams of batches) than `ORIGINS_MAX`.
    #[error("the peer announces more origins than a run can have")]
    TooManyOrigins,
    /// The peer names more members of the run than `MEMBERS_MAX`.
    #[error("the peer names more members than a run can have")]
    TooManyMembers,
    /// The peer sent too many damaged frames in a row.
    #[error("the peer keeps sending damaged batches")]
    OnlyDamage,
}
