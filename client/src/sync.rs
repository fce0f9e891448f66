//! Locks that a panic elsewhere does not close.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a value that no panic leaves half changed.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
