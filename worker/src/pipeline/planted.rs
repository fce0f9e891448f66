//! Bugs that a simulation puts into a worker's part in a pipeline, to see that a storm finds them. A release has none of them:
//! they are compiled for tests and with the feature `planted-bugs` only.

use super::PipelineViolation;

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
    /// Whether all of this thread's workers are honest, so that none is refused for what it sends.
    pub static ALL_ARE_HONEST: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Takes note that another worker of a pipeline is refused: where all are honest, one that follows the protocol is.
#[cfg(any(test, feature = "planted-bugs"))]
pub(super) fn note_refusal(violation: PipelineViolation) {
    assert!(!ALL_ARE_HONEST.get(), "an honest worker is refused: {violation}");
}

/// Nothing is known of other workers.
#[cfg(not(any(test, feature = "planted-bugs")))]
pub(super) const fn note_refusal(_violation: PipelineViolation) {}

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
