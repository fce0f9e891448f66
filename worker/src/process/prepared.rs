//! A job that is ready to be trained: its data open, its shapes known.

use std::sync::Arc;

use protocol::attach::{Assignment, DataInfo};
use protocol::job::Job;
use protocol::model::{Layout, initial_counts};
use protocol::rng::splitmix64;
use protocol::sentence::sentence;

use super::Options;
use crate::backend::cpu::CpuTrainer;
use crate::dataset::Dataset;
use crate::ops::Threads;
use crate::state_file::{self, StateFileError};
use crate::training::{Identity, Training};
use crate::training_thread::{self, TrainingThread};

pub(super) struct Prepared {
    pub(super) job: Job,
    pub(super) dataset: Arc<Dataset>,
    pub(super) layout: Layout,
    pub(super) threads: Threads,
}

impl Prepared {
    /// Opens the data and fits the model to it; an error is one sentence.
    pub(super) fn open(job: &Job, options: &Options) -> Result<Self, String> {
        let dataset =
            Dataset::open(&job.data, job.seed, options.data_root.as_deref()).map_err(|error| sentence(&error))?;
        let layout = Layout::new(&job.model, dataset.input, dataset.classes.len()).map_err(|error| sentence(&error))?;
        Ok(Self {
            job: job.clone(),
            dataset: Arc::new(dataset),
            layout,
            threads: options.threads,
        })
    }

    pub(super) fn data(&self) -> DataInfo {
        DataInfo {
            hash: *self.dataset.hash.as_bytes(),
            input: self.dataset.input,
            classes: self.dataset.classes.len(),
            train: self.dataset.train.len() as u64,
            test: self.dataset.test.len() as u64,
        }
    }

    /// Starts to train, from a ledger's counts or, without any, from the initial ones.
    pub(super) fn start(&self, assignment: &Assignment, counts: Vec<i32>) -> Result<TrainingThread, String> {
        let counts = if counts.is_empty() {
            initial_counts(&self.layout, self.job.seed)
        } else {
            counts
        };
        if counts.len() != self.layout.weights {
            return Err("the node's ledger is of another model".into());
        }
        let identity = Identity {
            run: assignment.run,
            origin: assignment.origin,
            slot: assignment.slot,
            slots: assignment.slots,
        };
        let (job, dataset, layout, threads) = (
            self.job.clone(),
            Arc::clone(&self.dataset),
            self.layout.clone(),
            self.threads,
        );
        let (cursors, batches, samples) = (assignment.cursors.clone(), assignment.batches, assignment.samples);
        let restore = assignment.restore.clone();
        training_thread::start(threads, move || {
            let rule = job.optimiser.rule;
            // Not the origin, which is drawn anew each time: the same job on one node gives the same model.
            let dropout_seed = splitmix64(job.seed ^ splitmix64(identity.slot as u64));
            let trainer = CpuTrainer::new(Arc::clone(&dataset), &layout, &counts, rule, dropout_seed, threads)?;
            let mut training = Training::new(trainer, &job, &dataset, identity)?;
            training.resume(&cursors, batches, samples);
            if let Some(path) = restore {
                // A residual that is lost is no reason not to train.
                let restored = state_file::load(&path, layout.weights).and_then(|state| {
                    training
                        .restore(state)
                        .map_err(|source| StateFileError::Unfit { file: path, source })
                });
                if let Err(error) = restored {
                    tracing::warn!("this worker begins without what it had alone: {}", sentence(&error));
                }
            }
            Ok(training)
        })
        .map_err(|error| format!("the training thread could not be started: {error}"))
    }
}
