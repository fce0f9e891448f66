//! Bugs that a simulation plants in a worker's part of a pipeline, to check that a storm finds them. A release has none
//! of them: they are compiled only for tests and with the feature `planted-bugs`.

use super::PipelineViolation;

/// A bug that can be planted in a worker of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Messages of an earlier generation are taken for messages of the present one.
    MixesGenerations,
    /// A follower ends when its own samples are done, before its leader tells it to.
    EndsUntold,
}

#[cfg(any(test, feature = "planted-bugs"))]
thread_local! {
    /// The bug planted in this thread's workers.
    pub static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
    /// True if all of this thread's workers are honest, so that none may be refused for its messages.
    pub static ALL_ARE_HONEST: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Records that another worker of a pipeline is refused. If all workers are honest, this panics: a worker that follows
/// the protocol was refused.
#[cfg(any(test, feature = "planted-bugs"))]
pub(super) fn note_refusal(violation: PipelineViolation) {
    assert!(!ALL_ARE_HONEST.get(), "an honest worker is refused: {violation}");
}

/// Does nothing in a release, where the honesty of other workers is unknown.
#[cfg(not(any(test, feature = "planted-bugs")))]
pub(super) const fn note_refusal(_violation: PipelineViolation) {}

/// True if this bug is planted.
#[cfg(any(test, feature = "planted-bugs"))]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Returns `false`: a release has no planted bugs.
#[cfg(not(any(test, feature = "planted-bugs")))]
pub(crate) const fn planted(_bug: Bug) -> bool {
    false
}
