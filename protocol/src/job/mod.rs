//! The job: what a run is to do. One description for the command line, TOML files, the wire and model files.
//!
//! A [`JobDraft`] is what people write: every field may be missing, nothing is checked. A [`Job`] is complete and
//! valid; the only way to one is [`JobDraft::resolve`], which reports every mistake, not the first.

pub mod as_text;
pub mod augment;
pub mod clip;
pub mod data;
mod density;
mod draft;
mod exchange;
mod keep;
mod key;
mod keys;
pub mod loss;
mod mistakes;
pub mod model;
mod open;
pub mod optimiser;
mod pipeline;
mod rule;
pub mod schedule;
pub mod split;
pub mod target;
mod trainers;
mod validation;

use std::fmt;

pub use density::Density;
pub use exchange::{Exchange, RoundLength, RoundTopology, RoundWeighting, Rounds, STRATEGIES, Threshold};
pub use keep::Keep;
pub use keys::{Job, JobDraft, MINIBATCH_MAX, OpenKey};
pub use open::Open;
pub use pipeline::{Cut, Cuts, GROUPS_MAX, IN_FLIGHT_MAX, MICRO_MAX, PipelineSpec, SLICES_MAX, STAGES_MAX};
pub use rule::RunFacts;
pub use trainers::Trainers;
pub use validation::Validation;

impl Job {
    /// Whether the run decides anything by measurements: when it ends, or which weights it ends with.
    #[must_use]
    pub fn decides_by_measurements(&self) -> bool {
        self.patience.is_some() || self.target_accuracy.is_some() || self.keep == Keep::Best
    }

    /// Evaluations in an epoch: as many as the job says, else more where a target is to be hit.
    #[must_use]
    pub fn evaluations_per_epoch(&self) -> u32 {
        const WITH_TARGET: u32 = 16;
        let usual = if self.target_accuracy.is_some() { WITH_TARGET } else { 1 };
        self.evaluations.unwrap_or(usual)
    }

    /// The job of the run that follows when a run of this one has diverged: half the rate, and no further attempt.
    #[must_use]
    pub fn backed_off(&self) -> Self {
        let mut job = self.clone();
        job.optimiser.learning_rate /= 2.0;
        job.back_off = false;
        job
    }

    /// The share of training rows that is set aside for such measurements. The stages of a pipeline measure the test rows.
    #[must_use]
    pub fn validation_share(&self) -> f64 {
        if self.exchange.pipelines().is_some() {
            return 0.0;
        }
        self.validation.share(self.decides_by_measurements())
    }

    /// Samples in one step of one worker.
    #[must_use]
    pub fn step_samples(&self) -> u32 {
        self.minibatch.saturating_mul(self.accumulate)
    }
}

/// One mistake in a job, by the name of the flag or TOML key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    /// The key, as TOML has it.
    pub key: &'static str,
    /// One sentence.
    pub message: String,
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// All mistakes in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobErrors(pub Vec<JobError>);

impl fmt::Display for JobErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(JobError::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for JobErrors {}

#[cfg(test)]
mod tests;
