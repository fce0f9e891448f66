//! A bug that tests put into the loop, to see that a storm finds it: a worker that waits keeps the cursors of
//! throttled steps.

#[cfg(test)]
thread_local! {
    /// Whether the bug is in this thread.
    pub(super) static PLANTED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether the bug is there.
#[cfg(test)]
pub(super) fn keeps_last_cursors() -> bool {
    PLANTED.get()
}

/// The bug is not there.
#[cfg(not(test))]
pub(super) const fn keeps_last_cursors() -> bool {
    false
}
