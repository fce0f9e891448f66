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
//! `core` is the state, `event` is what it is told and what it wants done; `receiving` and `sending` are what nodes say,
//! `breach` is why a peer is quarantined, `barrier` is what workers wait for, `bundling` adds rounds up on their way, `bundles` is what comes of that,
//! `sequential_averaging` and
//! `averaging_events` are step-wise averaging, `relaying` is between those without a link, `retention` bounds the `log`,
//! `snapshots` is the last resort.
//!
//! ```text
//!  worker's batch ──▶ ┌──────────┐ ──▶ Send(peer, message)
//!  peer's message ──▶ │ Exchange │ ──▶ Deliver(batch) to the other workers
//!  link up, down ───▶ └──────────┘ ──▶ Quarantine(peer)
//!                   ledger · log · peers
//! ```

mod averaging_events;
mod barrier;
mod breach;
mod bundles;
mod bundling;
mod core;
#[cfg(test)]
mod description;
mod event;
mod limits;
mod log;
mod parcel;
mod peer;
mod peer_link;
pub(crate) mod planted;
mod receiving;
mod relaying;
mod retention;
mod routing;
mod sending;
mod sequential_averaging;
#[cfg(test)]
mod simulation;
mod snapshots;
#[cfg(test)]
mod tests;

pub use self::barrier::{Barrier, Patience};
pub use self::breach::Breach;
pub use self::bundling::ReductionPath;
pub use self::core::Exchange;
pub use self::event::{Effect, Event, Jump};
pub use self::limits::Limits;
pub use self::routing::Routing;
