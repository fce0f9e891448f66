//! Names that nobody else draws, and secrets that nobody guesses.

use std::hash::BuildHasher;
use std::io;
use std::time::Instant;

/// Bytes that nobody can guess.
pub fn secret<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| io::Error::other("the operating system's random number generator failed"))?;
    Ok(bytes)
}

/// A number that nobody else draws.
pub fn number() -> u64 {
    // The standard library's own keys: drawn from the system for every thread, and moved on with every use.
    std::collections::hash_map::RandomState::new().hash_one((std::process::id(), Instant::now()))
}
