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
//!
//! Two nodes, one batch, and no network: the caller carries the effects out.
//!
//! ```
//! use communicator::exchange::{Effect, Event, Exchange, Limits};
//! use communicator::ledger::Ledger;
//! # use protocol::ids::{NodeId, OriginId, RunId};
//! # use protocol::log::batch::{Header, OriginStatus, Payload};
//! # use protocol::weights::{changes::change, lattice::Tau};
//! # use protocol::wire::link::OriginInfo;
//! # let payload = Payload::Steps { tau: Tau::ONE_STEP, changes: vec![change(3, true)] };
//! # let header = Header { run: RunId(1), origin: OriginId(1), sequence: 1, seen: 0, digest: payload.digest(),
//! #     cursors: Vec::new(), samples: 1, loss: 0.0, status: OriginStatus::default() };
//! # let mut batch = Vec::new();
//! # header.encode(&payload, &mut batch).unwrap();
//! let ids = [NodeId(1), NodeId(2)];
//! let origin = OriginInfo { origin: OriginId(1), node: ids[0], slot: 0, ended: None };
//! let mut nodes = ids.map(|id| Exchange::new(id, Ledger::new(RunId(1), vec![0; 64]), Limits::for_weights(64)));
//! let mut events: Vec<(usize, Event)> = Vec::new();
//! for (node, peer) in [(0, ids[1]), (1, ids[0])] {
//!     events.extend(ids.map(|id| (node, Event::Founder(id))));
//!     events.extend([Event::Origin(origin), Event::LinkUp(peer)].map(|event| (node, event)));
//! }
//! events.push((0, Event::Local(batch.into())));
//! while !events.is_empty() {
//!     let (node, event) = events.remove(0);
//!     let mut effects = Vec::new();
//!     nodes[node].handle(event, &mut effects);
//!     for effect in effects {
//!         if let Effect::Send { to, message } = effect {
//!             events.push((to.0 as usize - 1, Event::Received { from: ids[node], message }));
//!         }
//!     }
//! }
//! assert_eq!(nodes[1].ledger().counts()[3], 1);
//! assert_eq!(nodes[0].ledger().digest(), nodes[1].ledger().digest());
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
