//! The parts of a node's process that are not the node itself.

pub(crate) mod dead_sockets;
pub(crate) mod journal;
pub(crate) mod metrics;
