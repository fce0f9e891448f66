//! The exchange: how batches reach every replica. A pure core, told what happens, answering with what to do.
//!
//! Every node sends its own workers' batches to every peer it has a link to. A link delivers in order and may break at
//! any moment; when it is back, both sides say what they have, and sending resumes from there. Peers acknowledge by
//! frontier. A node keeps every batch, its own and others', until all members have acknowledged it: when an origin's
//! node is gone, whoever has more of its batches than a peer sends them on, so survivors end up with the same prefix.
//!
//! ```text
//!  worker's batch ──▶ ┌──────────┐ ──▶ Send(peer, message)
//!  peer's message ──▶ │ Exchange │ ──▶ Deliver(batch) to the other workers
//!  link up, down ───▶ └──────────┘ ──▶ Quarantine(peer)
//!                   ledger · log · peers
//! ```

mod core;
mod log;
mod message;
mod peer;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use self::core::{Effect, Event, Exchange, Limits};
use self::message::Frame;
pub use self::message::{Message, OriginInfo};
