//! The job: what a run is to do. One description for the command line, TOML files, the wire and model files.
//!
//! A [`JobDraft`] is what people write: every field may be missing, nothing is checked. A [`Job`] is complete and
//! valid; the only way to one is [`JobDraft::resolve`], which reports every mistake, not the first.

pub mod as_text;
mod density;
mod draft;
mod exchange;
mod keep;
mod mistakes;
mod open;
mod pipeline;
mod rule;
mod trainers;
mod validation;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use density::Density;
pub use draft::{JobDraft, MINIBATCH_MAX};
pub use exchange::{Exchange, RoundLength, RoundTopology, RoundWeighting, Rounds, STRATEGIES, Threshold};
pub use keep::Keep;
pub use open::{Open, OpenKey};
pub use pipeline::{Cut, Cuts, GROUPS_MAX, IN_FLIGHT_MAX, MICRO_MAX, PipelineSpec, SLICES_MAX, STAGES_MAX};
pub use rule::RunFacts;
pub use trainers::Trainers;
pub use validation::Validation;

use crate::augment::Augment;
use crate::clip::Clip;
use crate::data::DataSpec;
use crate::loss::{ClassWeights, Loss};
use crate::model::ModelSpec;
use crate::optimiser::Optimiser;
use crate::schedule::Schedule;
use crate::split::Split;

/// A complete, valid job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "JobDraft", into = "JobDraft")]
pub struct Job {
    /// Where the samples come from.
    pub data: DataSpec,
    /// The network.
    pub model: ModelSpec,
    /// A model file that it begins with the weights of.
    pub from: Option<std::path::PathBuf>,
    /// How often each sample is trained.
    pub epochs: u32,
    /// Samples whose gradient one worker computes at once.
    pub minibatch: u32,
    /// Minibatches in one step of one worker: their gradients are added up.
    pub accumulate: u32,
    /// How a gradient becomes an update.
    pub optimiser: Optimiser,
    /// What is made small.
    pub loss: Loss,
    /// How much samples of each class count.
    pub class_weights: ClassWeights,
    /// The share of certainty that is spread over all classes.
    pub label_smoothing: f64,
    /// How images are varied.
    pub augment: Augment,
    /// Whether gradients are clipped, and to which norm.
    pub clip: Clip,
    /// How the learning rate goes over the run.
    pub lr_schedule: Schedule,
    /// How samples are dealt to workers.
    pub split: Split,
    /// Whether each minibatch holds the classes in the data's proportion.
    pub balanced: bool,
    /// Whether workers keep the samples that they are dealt in the first epoch.
    pub dealt_once: bool,
    /// How nodes exchange what they learn.
    pub exchange: Exchange,
    /// The number of workers that train at the same time.
    pub trainers: Trainers,
    /// The rows that decisions are measured on.
    pub validation: Validation,
    /// The run ends when the accuracy on the validation rows reaches this.
    pub target_accuracy: Option<f64>,
    /// How often evaluation samples are measured in an epoch, if the user says so.
    pub evaluations: Option<u32>,
    /// The run ends when so many evaluations in a row have brought no lower evaluation loss.
    pub patience: Option<u32>,
    /// Whether a run that diverges is trained once more, at half the rate.
    pub back_off: bool,
    /// Which weights it ends with.
    pub keep: Keep,
    /// The run ends after this time.
    pub max_seconds: Option<f64>,
    /// Seconds between two checkpoints.
    pub checkpoint_every: Option<f64>,
    /// Seconds after which a silent participant is not waited for, if the user says so.
    pub give_up_after: Option<f64>,
    /// What initial weights and sample order are drawn from.
    pub seed: u64,
    /// The settings that were left open; the fields of these hold placeholders until the rule has decided them.
    pub open: Open,
}

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
