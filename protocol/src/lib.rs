//! The language of a Tau cluster, and nothing that acts: no threads, sockets, clocks or operating-system randomness.
//! Time and randomness are arguments, so everything here can be tested to the bit.
//!
//! Each room imports only those before it: [`weights`] are what a change is made of, and how it is written as few bytes;
//! a [`log`] is what a replica has applied: batches, ranges, bundles, frontiers; a [`job`] says what is trained and how;
//! [`reasons`] are what people are told when something waits, fails or is refused; [`stats`] are the records and results of a
//! run; whatever leaves a process is on the [`wire`].

// Every other crate reads this one, so everything in it says what it is.
#![warn(missing_docs)]

/// A value that is only there where a line of a table has something, which is named first.
macro_rules! if_given {
    ($word:tt, $($value:tt)+) => {
        $($value)+
    };
}

pub mod bounded;
pub mod ids;
pub mod job;
pub mod log;
pub mod reasons;
pub mod rng;
pub mod sentence;
pub mod stats;
mod text_options;
pub mod weights;
pub mod wire;
