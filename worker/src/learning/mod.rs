//! Learning: updates from gradients, gradient clipping, and the adjustments for several workers that train at once.

pub mod clip;
pub mod multi_worker;
pub(crate) mod muon;
pub mod optimiser;
pub mod staleness_guard;
