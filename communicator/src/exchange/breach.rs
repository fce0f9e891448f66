//! Why a peer is quarantined.

use protocol::ids::OriginId;
use protocol::log::batch::BatchError;
use thiserror::Error;

use crate::ledger::{LedgerError, SnapshotError};

/// What a peer sent that no honest member of the run sends.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Breach {
    /// A batch, a range or a bundle is not valid.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A batch does not belong to the run.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A snapshot is no ledger of the run.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A snapshot has another format.
    #[error("the peer's snapshot cannot be decoded")]
    UnreadableSnapshot,
    /// A snapshot contains batches of an origin that nobody has announced.
    #[error("the peer's snapshot contains origin {0}, which is unknown in this run")]
    UnknownOriginInSnapshot(OriginId),
    /// A snapshot and the ledger differ in equally many batches of an origin.
    #[error("the peer's snapshot contains other batches of origin {0} than this node has applied")]
    OtherBatchesInSnapshot(OriginId),
    /// A batch is of an origin that nobody has announced.
    #[error("origin {0} is unknown in this run")]
    UnknownOrigin(OriginId),
    /// A batch of this node's own origin, which its worker has not made.
    #[error("the peer sent batch {sequence} of this node's own origin {origin}, which was never made")]
    NeverMade { origin: OriginId, sequence: u64 },
    /// The origin's node has sent the same batch before, with other contents.
    #[error("the peer sent batch {sequence} of origin {origin} with other contents than this node has")]
    OtherContents { origin: OriginId, sequence: u64 },
    /// A parcel of this many bytes.
    #[error("the peer announces a parcel of {0} bytes, which exceeds the limit")]
    OversizeParcel(u64),
    /// More origins than `ORIGINS_MAX`.
    #[error("the peer announces more origins than a run can have")]
    TooManyOrigins,
    /// More members than `MEMBERS_MAX`.
    #[error("the peer names more members than a run can have")]
    TooManyMembers,
    /// Nothing but damage, many times in a row.
    #[error("the peer keeps sending damaged batches")]
    OnlyDamage,
}
