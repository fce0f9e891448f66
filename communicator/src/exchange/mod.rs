//! The exchange: how batches reach every replica. A pure core, told what happens, answering with what to do.
//!
//! A `routing` says which node sends which batches to which peer: over a mesh every node sends its own to every peer that it
//! has a link to, over a star all go by way of a hub, and bundled rounds are added up on a reduction path. A link delivers in
//! order and may break at any moment; when it is back, both sides say what they have, and sending goes on from there. Peers
//! acknowledge by frontier. A node keeps every batch, its own and others', until all members have acknowledged it: when an
//! origin's node is gone, whoever has more of its batches than a peer sends them on, so survivors end up with the same
//! prefix.
//!
//! What is kept for those who are away is merged when it becomes much. A merged range has no points within, so members
//! agree on where ranges begin: each tells each now and then a *mark*, a frontier since which it remembers what it has,
//! and can take away from a range what it has of it. Whoever cannot be helped with ranges either asks for a snapshot.
//!
//! `core` is told the events and decides by its parts, each of which owns its data: `strategy` the path of batches, rounds
//! and averaging steps (with `routing`, `barrier`, `bundling` and `sequential_averaging`), `replica` the ledger with its
//! `log`, `origins` their announcements, `peers` the members with their links and marks, `snapshots` this node's own need of
//! one.
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
