//! Ids that are unique, and secrets that cannot be guessed.

use std::hash::BuildHasher;
use std::io;
use std::time::Instant;

/// Returns bytes that cannot be guessed.
pub fn secret<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| io::Error::other("the operating system's random number generator failed"))?;
    Ok(bytes)
}

/// Returns a random 64-bit number for an id; no other process is likely to draw the same.
pub fn number() -> u64 {
    // `RandomState` gets its keys from the system for every thread, and changes them with every use.
    std::collections::hash_map::RandomState::new().hash_one((std::process::id(), Instant::now()))
}
