//! One file for each command.

pub(crate) mod credentials;
pub(crate) mod evaluate;
pub(crate) mod train;

use worker::ops::Threads;

use crate::failure::Failure;

/// The threads asked for, or all cores.
fn threads(asked: Option<usize>) -> Result<Threads, Failure> {
    /// More are a slip of the hand, and would only wait for each other.
    const THREADS_MAX: usize = 1024;
    match asked {
        None => Ok(Threads(std::thread::available_parallelism().map_or(1, usize::from))),
        Some(threads) if (1..=THREADS_MAX).contains(&threads) => Ok(Threads(threads)),
        Some(threads) => Err(Failure::input(format!(
            "--threads must be from 1 to {THREADS_MAX}, not {threads}"
        ))),
    }
}
