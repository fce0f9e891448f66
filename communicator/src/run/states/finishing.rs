//! Data of a run whose model is measured and saved: the members of the end, the worker that saves, and the place of the
//! ledger.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use protocol::ids::NodeId;
use protocol::stats::measured::Scores;

use crate::run::event::{Settlement, WorkerKey};

/// Number of lost workers up to which the time limit for saving begins again. A worker that dies whenever it saves must
/// not hold up the end.
const LOSSES_MAX: u32 = 3;

/// Data of a run whose model is measured and saved.
#[derive(Debug)]
pub(crate) struct Finishing {
    /// Members whose digests of the final weights this node awaits before it ends the run; lost ones are left out.
    pub(crate) members: BTreeSet<NodeId>,
    pub(crate) since: Duration,
    /// Final figures of the exchange, and the time at which they came.
    pub(crate) settlement: Option<(Box<Settlement>, Duration)>,
    /// True if the exchange was asked for its final figures once more, because this node's replica had to be replaced.
    pub(crate) asked_again: bool,
    pub(crate) saver: Saver,
    /// True if the worker that saves was told to measure the whole pipeline first.
    pub(crate) measures_pipeline: bool,
    /// True if the model is saved among temporary files, because its own folder takes no file.
    pub(crate) spare: bool,
    /// Time at which the present attempt to save the model began.
    pub(crate) tries: Duration,
    /// Number of workers that were lost while they saved the model.
    losses: u32,
    /// State of the checkpoint in which this node's replica is kept if no node could save the model.
    pub(crate) kept: LastCheckpoint,
}

/// The worker that saves the model, if there is one, and its result.
#[derive(Debug)]
pub(crate) enum Saver {
    /// No worker was ordered to save the model yet.
    None,
    /// This worker was ordered to save the model; it has a place in the run, or was given the replica for this.
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

    /// Handles the loss of a worker. If the worker was to save the model, another one has to, which gets the full time
    /// for it unless too many were lost.
    pub(crate) fn detached(&mut self, worker: WorkerKey, now: Duration) {
        if matches!(self.saver, Saver::Ordered(saver) if saver == worker) {
            self.saver = Saver::None;
            self.losses += 1;
            if self.losses <= LOSSES_MAX {
                self.tries = now;
            }
        }
    }

    /// Records that the worker has saved and measured the model, or could not.
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
