//! Conversion between job drafts, which people write, and complete jobs.

use super::data::{self, DataSpec};
use super::key::Text;
use super::keys::CheckedKeys;
use super::mistakes::Mistakes;
use super::model::{self, ModelSpec};
use super::{Density, Job, JobDraft, JobError, JobErrors, MINIBATCH_MAX, OpenKey, Threshold, Validation};

impl JobDraft {
    /// Reads a draft of a job, in which keys may be missing, from the text of a TOML file.
    pub fn from_toml(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// Writes the draft of a job as the text of a TOML file.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// Returns this draft of a job with its missing keys taken from `other`.
    #[must_use]
    pub fn or(self, mut other: Self) -> Self {
        // A fixed τ and a density exclude each other: the first draft that has one decides.
        if self.tau.is_some() || self.density.is_some() {
            (other.tau, other.density) = (None, None);
        }
        self.or_each(other)
    }

    /// Returns the keys given in this draft that a resumed run may not change: all but those that decide when the run
    /// ends, with which weights, and what is measured and written on the way. The weights so far were learned under the
    /// fixed keys.
    #[must_use]
    pub fn fixed_keys(&self) -> Vec<String> {
        let said = toml::Table::try_from(self).unwrap_or_default();
        said.into_iter()
            .map(|(key, _)| key)
            .filter(|key| !Self::CHANGEABLE.contains(&key.as_str()))
            .collect()
    }

    /// Makes a complete job of this draft: checks all keys and fills in the missing ones with their defaults. Settings
    /// that are decided only when the run begins get placeholders, and the job records them as open.
    pub fn resolve(self) -> Result<Job, JobErrors> {
        let says_threshold = if self.tau.is_some() {
            Some("tau")
        } else {
            self.density.as_ref().map(|_| "density")
        };
        let open = self
            .left_out()
            .filter(|&key| key != OpenKey::Exchange || says_threshold.is_none())
            .collect();
        let mut draft = self;
        if draft.data.is_none() && draft.model.as_deref().is_some_and(model::names_module) {
            draft.data = Some(data::MODULE.into());
        }
        let draft = draft.or(Self::defaults());
        let mut mistakes = Mistakes(Vec::new());
        let threshold = match (draft.tau, &draft.density) {
            (Some(_), Some(_)) => mistakes.add("tau", "give either tau or density, not both".into()),
            (Some(tau), None) => mistakes.tau(tau),
            (None, density) => mistakes
                .check::<Text<Density>>("density", density.clone())
                .map(Threshold::Density),
        };
        let exchange = draft.exchange.as_deref().unwrap_or_default();
        let exchange = mistakes.exchange(exchange, threshold, says_threshold);
        let keys = CheckedKeys::new(&draft, &mut mistakes);
        if let (Some(minibatch), Some(accumulate)) = (keys.minibatch, keys.accumulate)
            && minibatch.saturating_mul(accumulate) > MINIBATCH_MAX
        {
            let message =
                format!("a step may have at most {MINIBATCH_MAX} samples, not {accumulate} times {minibatch}");
            mistakes.add::<()>("accumulate", message);
        }
        if exchange.is_some_and(|exchange| exchange.pipelines().is_some()) {
            mistakes.spread(&draft, keys.keep.unwrap_or_default());
            if let Some(file) = keys.model.as_ref().and_then(ModelSpec::module) {
                mistakes.uncut(file);
            }
        }
        if keys.data == Some(DataSpec::Module) {
            mistakes.of_module_data(&keys);
        }
        match exchange.and_then(|exchange| keys.job(exchange, open)) {
            Some(job) if mistakes.0.is_empty() => job.if_short(),
            _ => Err(JobErrors(mistakes.0)),
        }
    }
}

impl Job {
    /// Returns the job of a resumed run with `changes`, or an error if they contain a key that a resumed run may not
    /// change.
    pub fn changed(&self, changes: JobDraft) -> Result<Self, JobErrors> {
        let fixed = changes.fixed_keys();
        if fixed.is_empty() {
            let mut job = changes.or(JobDraft::from(self)).resolve()?;
            // The validation rows stay the same, whether or not the changed job decides by measurements: rows that were
            // trained on must not become validation rows.
            let share = self.validation_share();
            if job.validation_share() != share {
                job.validation = if share > 0.0 {
                    Validation::Share(share)
                } else {
                    Validation::Test
                };
            }
            return Ok(job);
        }
        let message = format!(
            "{} cannot be changed in a resumed run: leave such settings out, or begin a new run from the model of \
             the old one (--from)",
            fixed.join(", ")
        );
        Err(JobErrors(vec![JobError { key: "resume", message }]))
    }

    /// Longest text of a job in bytes. Every node sends this text to every other node twice a second.
    pub const TEXT_BYTES_MAX: usize = 64 << 10;

    /// Returns the job unchanged, or an error if its text is too long to be sent to all nodes.
    fn if_short(self) -> Result<Self, JobErrors> {
        let draft = JobDraft::from(&self);
        let bytes = toml::to_string(&draft).map_or(0, |text| text.len());
        if bytes <= Self::TEXT_BYTES_MAX {
            return Ok(self);
        }
        // All other keys are a few words long.
        let key = if draft.data.map(|text| text.len()) > draft.model.map(|text| text.len()) {
            "data"
        } else {
            "model"
        };
        let message = format!(
            "the job text has {bytes} bytes, but at most {} are allowed: shorten the job text",
            Self::TEXT_BYTES_MAX
        );
        Err(JobErrors(vec![JobError { key, message }]))
    }
}

impl TryFrom<JobDraft> for Job {
    type Error = JobErrors;

    fn try_from(draft: JobDraft) -> Result<Self, JobErrors> {
        draft.resolve()
    }
}

impl From<Job> for JobDraft {
    fn from(job: Job) -> Self {
        Self::from(&job)
    }
}

/// Converts a job back into a draft, which model files and `--help` show.
impl From<&Job> for JobDraft {
    fn from(job: &Job) -> Self {
        let mut draft = Self::of_keys(job);
        draft.exchange = Some(job.exchange.to_string());
        match job.exchange.threshold().filter(|_| !job.open.has(OpenKey::Exchange)) {
            Some(Threshold::Density(density)) => draft.density = Some(density.to_string()),
            Some(Threshold::Fixed(tau)) => draft.tau = Some(f64::from(tau.value())),
            None => {}
        }
        draft.without(&job.open)
    }
}
