//! Bugs that a simulation puts into a worker's part in a pipeline, to see that a storm finds them. A release has none of them:
//! they are compiled for tests and with the feature `planted-bugs` only.

/// A bug of a worker in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Messages of an earlier generation are taken for messages of the present one.
    MixesGenerations,
    /// A follower ends when its own samples are done, before its leader tells it to.
    EndsUntold,
}

#[cfg(any(test, feature = "planted-bugs"))]
thread_local! {
    /// The bug in this thread's workers.
    pub static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Whether a bug is there.
#[cfg(any(test, feature = "planted-bugs"))]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// No bug is there.
#[cfg(not(any(test, feature = "planted-bugs")))]
pub(crate) const fn planted(_bug: Bug) -> bool {
    false
}
