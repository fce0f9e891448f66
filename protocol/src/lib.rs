//! Types and pure functions that all processes of a Tau cluster share: messages, jobs, batches and weight arithmetic.
//! The crate has no threads, sockets, clocks or operating-system randomness. Time and randomness are arguments, so that
//! every result can be tested to the bit.
//!
//! Each module imports only those before it in this list: [`weights`] holds weight changes and their encodings; [`log`]
//! holds batches, merged ranges, bundles, frontiers and cursors; [`job`] holds the settings of a training run;
//! [`reasons`] holds the texts that tell people why something waits, fails or is refused; [`stats`] holds the records
//! and results of a run; [`wire`] holds all messages that leave a process.

/// Expands to `value`. In a macro over a table, it stands in a repetition for an optional word of a row: as `word` is
/// named in it, the repetition happens only for rows that have the word.
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
