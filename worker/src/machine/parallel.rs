//! Divides work among threads, one part per task.

use rayon::prelude::*;

/// Processes parts in parallel and returns the results in order. A single part is processed on the calling thread.
pub(crate) fn map_parts<P: Send, R: Send>(mut parts: Vec<P>, work: impl Fn(P) -> R + Send + Sync) -> Vec<R> {
    match parts.len() {
        1 => parts.pop().map(work).into_iter().collect(),
        _ => parts.into_par_iter().map(work).collect(),
    }
}

/// Number of threads that an operation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads(pub usize);
