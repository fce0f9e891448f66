//! Tau's node: what a replica knows, apart from how it is computed.
//!
//! The [`ledger`] is the node's own replica, in integers: batches enter it, models are saved and audited from it; a
//! [snapshot](protocol::wire::snapshot) is all of it, for others, and a [`checkpoint`] that in a file. The [`exchange`]
//! decides which batches go to whom, so that every replica gets all of them; a [`link`] writes its messages on the
//! connections that the [`transport`] makes. A [`node`] is all of that as actors, which reach other nodes' through the
//! [`control`] plane; [`Timing`] is the table of what they wait for. [`usage`] tells what a node takes of its machine,
//! [`log_context`] which one it is, and [`log_notices`] keeps what it has said.

pub mod checkpoint;
pub mod control;
pub mod entropy;
pub mod exchange;
pub mod ledger;
pub mod link;
pub mod log_context;
pub mod log_notices;
mod log_throttle;
mod meter;
pub mod node;
mod pipeline;
mod planted;
mod run;
mod run_exchange;
mod run_files;
#[cfg(test)]
mod seeds;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod small_plan;
mod timing;
pub mod transport;
pub mod usage;

pub use timing::{Timing, TimingError};
