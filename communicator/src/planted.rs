//! Bugs that tests put into the cores, to see that the simulations of exchanges and of whole nodes find them.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Guests are not waited for when the run settles.
    ForgottenGuest,
    /// A stop that others tell of is not taken over.
    LostStop,
    /// A run that has begun begins again when its beginning is heard again.
    BegunTwice,
    /// A node ends without waiting for those that live.
    EndedAlone,
    /// A node does not say that its empty seats make no batches.
    EmptySeatUntold,
    /// What others say about whom they have given up is not listened to.
    PrivateGiveUp,
    /// A stop that reaches a guest while it prepares ends the run everywhere.
    StopAtGuestAborts,
    /// No node tells the others that it has ended the run.
    EndUntold,
    /// A stop is acted upon only when workers say something.
    StopUnacted,
    /// Only the node with the lower name dials, for ever. The simulation's own network does it.
    #[cfg(test)]
    OneSideDials,
    /// Only what is heard directly counts as a sign of life.
    DirectLifeOnly,
    /// A node tells nobody whom it has put in quarantine.
    PrivateQuarantine,
    /// A participant that this node cannot dial is given up though others hear it.
    RefusedIsDead,
    /// A worker that has nothing to train keeps samples that no batch counts. The simulation's own workers do it.
    #[cfg(test)]
    KeepsLastCursors,
    /// A node that leaves does not let its workers close first.
    LeavesAtOnce,
    /// A member that this node has never reached by dialling it is taken for dead when it cannot be dialled.
    UnreachedIsDead,
    /// The former process of a node that was started again is missing beside the one that ended the run.
    FormerLifeMissing,
    /// A node whose stage another has taken over does not withdraw.
    VacancyFilledTwice,
    /// Messages to a stage go to the node that began with it, though another has taken it over.
    SendsToTheReplaced,
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
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// No bug is there.
#[cfg(not(test))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
