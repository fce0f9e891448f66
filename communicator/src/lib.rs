//! Tau's node: all that a replica needs, apart from computing gradients.
//!
//! The [`ledger`] is the node's own replica, in integers: batches enter it, and weights are saved and audited from it.
//! A [snapshot](protocol::wire::snapshot) is a whole ledger for another node, and a [`checkpoint`] is one in a file.
//! The [`exchange`] decides which batch goes to which node, so that every replica gets all of them; a [`link`] writes
//! its messages on the connections that the [`transport`] makes. A [`node`] is all of that as actors, which reach the
//! actors of other nodes through the [`control`] plane; [`Timing`] is the table of their time limits. [`usage`]
//! measures what a node takes of its machine, [`log_context`] names the node and its run in the log, and
//! [`log_notices`] keeps the node's log notices for its next record.

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
