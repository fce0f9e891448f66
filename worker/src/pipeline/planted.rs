//! Bugs that a simulation plants in a worker's part of a pipeline, to check that a storm finds them. A release has none
//! of them: they are compiled only for tests and with the feature `planted-bugs`.

use super::PipelineViolation;

/// Bug that a simulation test can plant in a worker of a pipeline, to prove that the test finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Planted bug: messages of an earlier pipeline generation are taken for messages of the present one.
    MixesGenerations,
    /// Planted bug: a follower ends when its own samples are done, before its pipeline's leader tells it to.
    EndsUntold,
}

#[cfg(any(test, feature = "planted-bugs"))]
thread_local! {
    pub static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
    /// True if a test runs only workers that follow the protocol, so that the refusal of any message is a bug.
    pub static ALL_ARE_HONEST: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Records that a message of another worker was refused. If all workers of the test are honest, this panics.
#[cfg(any(test, feature = "planted-bugs"))]
pub(super) fn note_refusal(violation: PipelineViolation) {
    assert!(!ALL_ARE_HONEST.get(), "an honest worker is refused: {violation}");
}

/// Does nothing in a release, where the honesty of other workers is unknown.
#[cfg(not(any(test, feature = "planted-bugs")))]
pub(super) const fn note_refusal(_violation: PipelineViolation) {}

/// True if a test has planted this bug in the workers of this thread.
#[cfg(any(test, feature = "planted-bugs"))]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Returns `false`: bugs are planted only in tests, not in a release.
#[cfg(not(any(test, feature = "planted-bugs")))]
pub(crate) const fn planted(_bug: Bug) -> bool {
    false
}
