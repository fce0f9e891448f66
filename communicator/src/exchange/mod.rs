//! The exchange: a pure state machine that distributes every worker's batches to every node's replica of the model. Its
//! inputs are events and its outputs effects; it has no sockets and no clock.
//!
//! The `routing` decides which node sends which batches to which peer: in a mesh every node sends its own to every peer
//! that it has a link to, in a star all batches go over a hub, and the batches of bundled rounds are added up along a
//! reduction path. A link delivers in order and may break at any moment; when it is up again, both sides tell their
//! frontiers, and sending continues from there. Peers acknowledge by frontier. A node keeps every batch, its own and
//! others', until all members have acknowledged it: if an origin's node is gone, any node that has more of its batches
//! than a peer sends them on, so all survivors end with the same batches.
//!
//! Batches that are kept for absent peers are merged when they become many. A merged range cannot be applied in part,
//! so members agree on where ranges begin: each node from time to time tells its peers a *mark*, a frontier from which
//! on it remembers its batches, so that it can subtract them from a range. A peer that ranges cannot help either asks
//! for a snapshot.
//!
//! `core` handles the events by means of its parts, each of which owns its data: `strategy` the path of batches, rounds
//! and averaging steps (with `routing`, `barrier`, `bundling` and `sequential_averaging`), `replica` the ledger with
//! its `log`, `origins` their announcements, `peers` the members with their links and marks, `snapshots` the snapshot
//! that this node itself needs.
//!
//! ```text
//!  worker's batch ──▶ ┌──────────┐ ──▶ Send(peer, message)
//!  peer's message ──▶ │ Exchange │ ──▶ Deliver(batch) to the other workers
//!  link up, down ───▶ └──────────┘ ──▶ Quarantine(peer)
//!     strategy · replica · origins · peers · snapshots
//! ```

mod barrier;
mod breach;
mod bundle_check;
mod bundling;
mod core;
mod event;
mod limits;
mod log;
mod origins;
mod parcel;
mod peer;
mod peers;
mod replica;
mod routing;
mod sequential_averaging;
#[cfg(test)]
mod simulation;
mod snapshots;
mod strategy;
#[cfg(test)]
mod tests;

pub use self::barrier::{Barrier, Patience};
pub use self::breach::Breach;
pub use self::bundling::ReductionPath;
pub use self::core::Exchange;
pub use self::event::{Effect, Event, Jump};
pub use self::limits::Limits;
pub use self::routing::Routing;
