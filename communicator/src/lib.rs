//! Tau's node: what a replica knows, apart from how it is computed.
//!
//! The [`ledger`] is the node's own replica, in integers: batches enter it, models are saved and audited from it.

pub mod ledger;
pub mod usage;
