//! Bugs that tests plant in the code, to check that the simulations of exchanges and of whole nodes find them.

/// A bug that tests plant on purpose, to check that the simulations find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Bug that tests plant: a run ends without waiting for guests (nodes that joined late).
    ForgottenGuest,
    /// Bug that tests plant: a node ignores other nodes' word that the run was stopped.
    LostStop,
    /// Bug that tests plant: a node that hears a second time that a run begins starts it again.
    BegunTwice,
    /// Bug that tests plant: a node ends the run without waiting for the other live nodes.
    EndedAlone,
    /// Bug that tests plant: a node does not tell that its seats (places for workers) without a worker make no batches, so that the end
    /// waits for them.
    EmptySeatUntold,
    /// Bug that tests plant: a node ignores which nodes other nodes have given up.
    PrivateGiveUp,
    /// Bug that tests plant: a client's request to stop a run makes the run fail on all nodes if it reaches a guest (a node that joins
    /// late) that is still preparing.
    StopAtGuestAborts,
    /// Bug that tests plant: nodes do not tell each other that they have ended the run.
    EndUntold,
    /// Bug that tests plant: a stop takes effect only when a worker sends a message or the exchange makes progress.
    StopUnacted,
    /// Bug that tests plant: of two nodes only the one with the lower name ever dials. The simulated network has this bug.
    #[cfg(test)]
    OneSideDials,
    /// Bug that tests plant: only state messages (beats) that come directly count as a sign of life, not those forwarded by other nodes.
    DirectLifeOnly,
    /// Bug that tests plant: a node does not tell the others which nodes it has quarantined.
    PrivateQuarantine,
    /// Bug that tests plant: a node gives up a participant that it cannot dial, although others hear it.
    RefusedIsDead,
    /// Bug that tests plant: a worker that runs out of samples sends no batch for those that it has trained last, so that others wait
    /// for them. The simulated workers have this bug.
    #[cfg(test)]
    KeepsLastCursors,
    /// Bug that tests plant: a node that leaves a run does not let its workers close their origins (streams of batches) first.
    LeavesAtOnce,
    /// Bug that tests plant: a node takes a member for dead that it cannot dial and has never reached by dialling.
    UnreachedIsDead,
    /// Bug that tests plant: the result of a run names the earlier process of a restarted node as missing, although the later one ended
    /// the run.
    FormerLifeMissing,
    /// Bug that tests plant: a node that drew other first weights than the run's, or lacks the checkpoint that the run
    /// continues from, begins with its own weights.
    OwnFirstWeights,
    /// Bug that tests plant: a node whose stage another node has taken over does not withdraw.
    VacancyFilledTwice,
    /// Bug that tests plant: messages to a stage go to the node that held it first, although another has taken it over.
    SendsToTheReplaced,
    /// Bug that tests plant: nodes do not resend the batches of dead nodes to peers that lack them.
    DroppedRepair,
    /// Bug that tests plant: a batch that comes twice is delivered to the workers twice.
    DoubleApply,
    /// Bug that tests plant: the batches that a node already has are not subtracted from a merged range (the sum of successive batches
    /// of one worker).
    WrongMerge,
    /// Bug that tests plant: batches kept for peers that are behind are never merged.
    NoMerge,
    /// Bug that tests plant: workers wait without a time limit for the workers of absent nodes to reach the same round.
    WaitsForTheDead,
    /// Bug that tests plant: workers never wait for other workers to reach the same round.
    NeverWaits,
    /// Bug that tests plant: the batches that a node already has are not subtracted from a bundle (a sum of several batches).
    BundleAnywhere,
    /// Bug that tests plant: one batch of a bundle (a sum of several batches) is not counted as applied.
    ForgottenOrigin,
    /// Bug that tests plant: if adding up a round's batches to one sum is given up, the batches are not sent singly either.
    ForgottenRound,
}

#[cfg(test)]
thread_local! {
    pub(crate) static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Returns true if the bug is planted in this thread.
#[cfg(test)]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Returns false: outside of tests no bug is planted.
#[cfg(not(test))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
