//! Bugs that tests put into the exchange, to see that the simulation finds them.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Nobody hands on what the dead have made.
    DroppedRepair,
    /// A batch that comes twice is handed to the workers twice.
    DoubleApply,
    /// What is here already is not taken away from a range.
    WrongMerge,
    /// What is kept for those who are behind is never merged.
    NoMerge,
    /// Workers wait for the rounds of nodes that are not there, without a bound.
    WaitsForTheDead,
    /// Workers wait for nobody's rounds.
    NeverWaits,
    /// What is here already is not taken away from a bundle.
    BundleAnywhere,
    /// Of a bundle's batches one is not counted as applied.
    ForgottenOrigin,
    /// The batches of a round that is given up go nowhere.
    ForgottenRound,
}

#[cfg(test)]
thread_local! {
    /// The bug of this thread.
    pub(crate) static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Whether a bug is there.
#[cfg(test)]
pub(super) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// No bug is there.
#[cfg(not(test))]
pub(super) const fn planted(_: Bug) -> bool {
    false
}
