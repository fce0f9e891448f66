//! The language of a Tau cluster, and nothing that acts: no threads, sockets, clocks or operating-system randomness.
//! Time and randomness are arguments, so everything here can be tested to the bit.
//!
//! The way of a change: [`changes`] (`index << 1 | plus`) are of one τ on the [`lattice`], [`sums`] are of any steps;
//! an [`encoding`] writes them as few bytes; a [`batch`] carries them with its place in the [`frontier`] and its
//! [`digest`]; many of them make a [`merged_range`], or, of several workers, a [`bundle`]. What is trained, and how, is
//! a [`job`]: a [`model`], an [`optimiser`], a [`schedule`], [`data`], a [`split`] and a strategy. Whatever leaves a
//! process is on the [`wire`].

// Every other crate reads this one, so everything in it says what it is.
#![warn(missing_docs)]

/// A value that is only there where a line of a table has something, which is named first.
macro_rules! if_given {
    ($word:tt, $($value:tt)+) => {
        $($value)+
    };
}

pub mod augment;
pub mod base_rate;
pub mod batch;
pub mod bounded;
pub mod bundle;
pub mod changes;
pub mod checksum;
pub mod clip;
pub mod contribution;
pub mod cursor;
pub mod data;
pub mod dense;
pub mod digest;
pub mod encoding;
pub mod frontier;
pub mod ids;
pub mod job;
pub mod lattice;
pub mod loss;
pub mod measured;
pub mod merged_range;
pub mod model;
pub mod optimiser;
pub mod reasons;
pub mod rng;
pub mod schedule;
pub mod sentence;
pub mod split;
pub mod stats;
pub mod sums;
pub mod target;
mod text_options;
pub mod waiting;
pub mod wire;
