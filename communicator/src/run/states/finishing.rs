//! What a run has whose model is measured and saved: with whom it ends, who saves, and where the ledger is kept.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use protocol::ids::NodeId;
use protocol::stats::measured::Scores;

use crate::run::event::{Settlement, WorkerKey};

/// Lost workers after which the time to save begins again. One that dies whenever it saves must not hold up the end.
const LOSSES_MAX: u32 = 3;

/// A run whose model is measured and saved.
#[derive(Debug)]
pub(crate) struct Finishing {
    /// With whom it ends.
    pub(crate) members: BTreeSet<NodeId>,
    pub(crate) since: Duration,
    /// What the exchange ends with, and when that was known.
    pub(crate) settlement: Option<(Box<Settlement>, Duration)>,
    /// The exchange was asked once more, because its ledger had to be replaced.
    pub(crate) asked_again: bool,
    pub(crate) saver: Saver,
    /// The worker that saves was told to measure the whole pipeline first.
    pub(crate) measures_pipeline: bool,
    /// The model is saved elsewhere, because the place where it belongs takes no file; and since when somebody tries.
    pub(crate) spare: bool,
    pub(crate) tries: Duration,
    /// Workers that were lost while they saved.
    losses: u32,
    /// Where the ledger is kept, if nobody could save the model.
    pub(crate) kept: LastCheckpoint,
}

/// Who saves the model.
#[derive(Debug)]
pub(crate) enum Saver {
    /// Nobody yet: no worker is there.
    None,
    /// A worker that was seated, or one that was given the ledger for it.
    Ordered(WorkerKey),
    Done(Result<Option<Scores>, String>),
}

#[derive(Debug)]
pub(crate) enum LastCheckpoint {
    No,
    Asked(Duration),
    Done(Result<PathBuf, String>),
}

impl Finishing {
    pub(crate) fn new(members: BTreeSet<NodeId>, now: Duration) -> Self {
        Self {
            members,
            since: now,
            settlement: None,
            asked_again: false,
            saver: Saver::None,
            measures_pipeline: false,
            spare: false,
            tries: now,
            losses: 0,
            kept: LastCheckpoint::No,
        }
    }

    pub(crate) fn is_saving(&self) -> bool {
        !matches!(self.saver, Saver::Done(_))
    }

    /// The worker that saves is gone: another one has to, and gets the full time for it, unless too many were lost.
    pub(crate) fn detached(&mut self, worker: WorkerKey, now: Duration) {
        if matches!(self.saver, Saver::Ordered(saver) if saver == worker) {
            self.saver = Saver::None;
            self.losses += 1;
            if self.losses <= LOSSES_MAX {
                self.tries = now;
            }
        }
    }

    /// The model is saved and measured, or could not be.
    pub(crate) fn saved(&mut self, worker: WorkerKey, saved: Result<Option<Scores>, String>) {
        if matches!(self.saver, Saver::Ordered(saver) if saver == worker) {
            if let Err(reason) = &saved {
                tracing::error!(event = "model_save_failed", reason, "the model could not be saved");
            }
            self.saver = Saver::Done(saved);
        }
    }

    pub(crate) fn settled(&mut self, settlement: Box<Settlement>, now: Duration) {
        self.settlement = Some((settlement, now));
        self.asked_again = false;
    }

    pub(crate) fn kept(&mut self, kept: Result<PathBuf, String>) {
        self.kept = LastCheckpoint::Done(kept);
    }
}
