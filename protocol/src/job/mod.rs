//! The job: the settings of a training run. The command line, TOML files, the wire and model files share this
//! description.
//!
//! People write a [`JobDraft`], in which every field may be missing and nothing is checked. A [`Job`] is complete and
//! valid; the only way to make one is [`JobDraft::resolve`], which reports all mistakes and not only the first.

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

use crate::stats::measured::Scores;

impl Job {
    /// True if evaluations decide when the run ends or with which weights.
    #[must_use]
    pub fn decides_by_measurements(&self) -> bool {
        self.patience.is_some() || self.has_target() || self.keep == Keep::Best
    }

    /// Returns true if the run ends once its model has reached an accuracy or a loss.
    #[must_use]
    pub fn has_target(&self) -> bool {
        self.target_accuracy.is_some() || self.target_loss.is_some()
    }

    /// Returns true if these scores on the validation rows reach the job's target: both targets, if it has two. A model
    /// without an accuracy reaches no target accuracy.
    #[must_use]
    pub fn target_is_reached_by(&self, scores: &Scores) -> bool {
        let accuracy = |target| scores.accuracy.is_some_and(|accuracy| accuracy >= target);
        self.has_target()
            && self.target_accuracy.is_none_or(accuracy)
            && self.target_loss.is_none_or(|target| scores.loss <= target)
    }

    /// Returns the number of evaluations of the model per epoch: the job's, or 16 with a target and 1 without.
    #[must_use]
    pub fn evaluations_per_epoch(&self) -> u32 {
        const WITH_TARGET: u32 = 16;
        let usual = if self.has_target() { WITH_TARGET } else { 1 };
        self.evaluations.unwrap_or(usual)
    }

    /// Returns the job that trains once more after a run of this job diverged: half the learning rate, and no further
    /// attempt.
    #[must_use]
    pub fn backed_off(&self) -> Self {
        let mut job = self.clone();
        job.optimiser.learning_rate /= 2.0;
        job.back_off = false;
        job
    }

    /// Returns the share of training rows that are set aside for validation; 0 for pipelines, whose stages are
    /// evaluated on the test rows.
    #[must_use]
    pub fn validation_share(&self) -> f64 {
        if self.exchange.pipelines().is_some() {
            return 0.0;
        }
        self.validation.share(self.decides_by_measurements())
    }

    /// Returns the number of samples in one step of one worker.
    #[must_use]
    pub fn step_samples(&self) -> u32 {
        self.minibatch.saturating_mul(self.accumulate)
    }
}

/// Mistake in a job's settings: the wrong key and a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    /// Name, in TOML, of the job's key whose value is wrong.
    pub key: &'static str,
    /// Description of the mistake in a job, one sentence for people.
    pub message: String,
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// All mistakes found in a job's settings, so that people see them at once.
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
