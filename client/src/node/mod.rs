//! Additional tasks of a node's process besides the node itself: its journal, its metrics and the removal of dead
//! sockets.

pub(crate) mod dead_sockets;
pub(crate) mod journal;
pub(crate) mod metrics;
