//! Names that nobody else draws.

use std::hash::BuildHasher;
use std::time::Instant;

/// A number that nobody else draws.
pub(crate) fn number() -> u64 {
    // The standard library's own keys: drawn from the system for every thread, and moved on with every use.
    std::collections::hash_map::RandomState::new().hash_one((std::process::id(), Instant::now()))
}
