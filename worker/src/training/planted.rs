//! A bug that tests plant in the training loop, to check that a storm finds it: a worker that waits keeps the cursors
//! of throttled steps.

#[cfg(test)]
thread_local! {
    /// True if the simulated workers of this thread have the planted bug: a worker with nothing to train does not tell
    /// the others of the samples that it trained in steps without a batch.
    pub(super) static PLANTED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// True if a test has planted the bug that a worker with nothing to train does not tell the others of the samples that
/// it trained in steps without a batch.
#[cfg(test)]
pub(super) fn keeps_last_cursors() -> bool {
    PLANTED.get()
}

/// Returns `false` outside of tests, where the planted bug (a worker with nothing to train does not tell the others of
/// the samples that it trained in steps without a batch) does not exist.
#[cfg(not(test))]
pub(super) const fn keeps_last_cursors() -> bool {
    false
}
