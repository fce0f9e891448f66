//! How a worker learns: updates from gradients, their clipping, and what changes when several workers train at once.

pub mod clip;
pub mod multi_worker;
pub(crate) mod muon;
pub mod optimiser;
pub mod staleness_guard;
