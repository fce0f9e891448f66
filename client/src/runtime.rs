//! The asynchronous runtime that commands run in.

use crate::failure::Failure;

/// Runs a future to its end on a new runtime.
pub(crate) fn run_async<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        // A node has few actors; more threads would only wake each other.
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Failure::work)?
        .block_on(work)
}
