//! A job as people write it, and the table of defaults.

use serde::{Deserialize, Deserializer, Serialize};

use super::mistakes::Mistakes;
use super::{Job, JobError, JobErrors, Open, OpenKey, Threshold, Validation};

/// A job with any field missing. As command-line flags these are the job flags, as a TOML file the same names with `_`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(deny_unknown_fields, default)]
pub struct JobDraft {
    /// Source of the samples: builtin:mnist, csv:FILE?label=COLUMN&test=0.2 and more options, npz:FILE, images:DIR, cifar:DIR or idx:DIR [default: builtin:mnist]
    #[cfg_attr(feature = "clap", arg(long, value_name = "SPEC", help_heading = "Job"))]
    pub data: Option<String>,
    /// Layers of the network, separated by commas: conv OUT KxK (stride S, pad P, nobias), dense OUT (the last one may leave OUT to the data), batchnorm, layernorm, groupnorm G, relu, leakyrelu, silu, gelu, tanh, sigmoid, dropout P, maxpool K, avgpool K, globalavgpool, flatten, and blocks: residual, with its layers in square brackets [default: by the data: "dense 100, relu, dense" for tables, two or more convolutions for images]
    #[cfg_attr(feature = "clap", arg(long, value_name = "LAYERS", help_heading = "Job"))]
    pub model: Option<String>,
    /// Model file to take the initial weights from: tensors of the same key and size are copied, all others start from random values. Its path is resolved like that of the data
    #[cfg_attr(feature = "clap", arg(long, value_name = "MODEL", help_heading = "Job"))]
    pub from: Option<String>,
    /// Passes over the training samples [default: by the number of rows]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Job"))]
    pub epochs: Option<u32>,
    /// Samples in one minibatch of one worker [default: by the number of rows, 64 for images]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Job"))]
    pub minibatch: Option<u32>,
    /// Minibatches whose gradients are added up for one step: N has the effect of a minibatch N times as large, in less memory [default: 1]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Job"))]
    pub accumulate: Option<u32>,
    /// Optimiser that turns gradients into weight updates
    #[serde(alias = "optimizer")]
    #[cfg_attr(
        feature = "clap",
        arg(long, alias = "optimizer", value_name = "RULE", help = crate::optimiser::HELP, help_heading = "Job")
    )]
    pub optimiser: Option<String>,
    /// Loss function: cross-entropy for classes; mse, mae or huber for numbers; auto takes cross-entropy or mse, as the data needs [default: auto]
    #[cfg_attr(feature = "clap", arg(long, value_name = "LOSS", help_heading = "Job"))]
    pub loss: Option<String>,
    /// Weight of each class in the loss: none, auto (the rarer the class, the higher), or a number for each class, separated by commas [default: none]
    #[cfg_attr(feature = "clap", arg(long, value_name = "WEIGHTS", help_heading = "Job"))]
    pub class_weights: Option<String>,
    /// Share of each label that is spread evenly over all classes, from 0 to 0.9; 0.1 makes a model less overconfident [default: 0]
    #[cfg_attr(feature = "clap", arg(long, value_name = "SHARE", help_heading = "Job"))]
    pub label_smoothing: Option<f64>,
    /// Augmentation of training images, drawn anew at each use: none, flip (half of them mirrored), crop=N (shifted by up to N pixels), or flip,crop=N [default: none]
    #[cfg_attr(feature = "clap", arg(long, value_name = "WAYS", help_heading = "Job"))]
    pub augment: Option<String>,
    /// Norm that gradients are clipped to, "none", or "auto": 1 if several workers train or sgd predicts numbers, else none [default: auto]
    #[serde(deserialize_with = "number_or_text")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NORM", help_heading = "Job"))]
    pub clip: Option<String>,
    /// Learning-rate schedule: constant, linear, cosine or step:every=SHARE,factor=F, each with warmup=SHARE if wanted [default: linear]
    #[cfg_attr(feature = "clap", arg(long, value_name = "CURVE", help_heading = "Job"))]
    pub lr_schedule: Option<String>,
    /// Fraction of the weights that a batch changes; τ is adjusted to reach it. auto[:bytes=N] takes 0.002, or more for small models, many workers or few steps, and at most N bytes per batch [default: auto]
    #[serde(deserialize_with = "number_or_text")]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "FRACTION", conflicts_with = "tau", help_heading = "Job")
    )]
    pub density: Option<String>,
    /// Fixed size of one weight change (τ), instead of a density
    #[cfg_attr(feature = "clap", arg(long, value_name = "X", help_heading = "Job"))]
    pub tau: Option<f64>,
    /// Assignment of samples to workers: random, equal (as many of each class for every worker) or class (classes of its own for each worker) [default: random]
    #[cfg_attr(feature = "clap", arg(long, value_name = "SPLIT", help_heading = "Job"))]
    pub split: Option<String>,
    /// Give each minibatch the classes in the data's proportion [default: false]
    #[cfg_attr(feature = "clap", arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", help_heading = "Job"))]
    pub balanced: Option<bool>,
    /// Keep the first epoch's assignment of samples to workers, instead of drawing a new one for every epoch [default: false]
    #[cfg_attr(feature = "clap", arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", help_heading = "Job"))]
    pub dealt_once: Option<bool>,
    /// Strategy by which nodes exchange weight changes
    #[cfg_attr(feature = "clap", arg(long, value_name = "STRATEGY", help = super::exchange::help(), help_heading = "Job"))]
    pub exchange: Option<String>,
    /// Number of workers that train at the same time, or all; the others only follow, and take over if a training worker is lost [default: 1 for a run that one worker finishes in some seconds, else all]
    #[serde(deserialize_with = "number_or_text")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Job"))]
    pub trainers: Option<String>,
    /// Validation rows, which --patience, --keep best and --target-accuracy decide by: a share of the training rows, test (the test rows themselves), or auto (a tenth of the training rows if one of the three is given, else none) [default: auto]
    #[serde(deserialize_with = "number_or_text")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "ROWS", help_heading = "Job"))]
    pub validation: Option<String>,
    /// End the run when the accuracy on the validation rows (R² for numbers) reaches this
    #[cfg_attr(feature = "clap", arg(long, value_name = "A", help_heading = "Job"))]
    pub target_accuracy: Option<f64>,
    /// Evaluations of the model per epoch [default: 1; 16 with a target accuracy]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Job"))]
    pub evaluations: Option<u32>,
    /// End the run when this many evaluations in a row have brought no lower loss on the validation rows; see --evaluations
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Job"))]
    pub patience: Option<u32>,
    /// If the run diverges, train it once more from the beginning at half the learning rate [default: true]
    #[cfg_attr(feature = "clap", arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", help_heading = "Job"))]
    pub back_off: Option<bool>,
    /// Weights that the run ends with: last, or best (of all evaluated weights, those with the lowest loss on the validation rows) [default: last]
    #[cfg_attr(feature = "clap", arg(long, value_name = "WHICH", help_heading = "Job"))]
    pub keep: Option<String>,
    /// End the run after this many seconds of training
    #[cfg_attr(feature = "clap", arg(long, value_name = "S", help_heading = "Job"))]
    pub max_seconds: Option<f64>,
    /// Seconds between two checkpoints
    #[cfg_attr(feature = "clap", arg(long, value_name = "S", help_heading = "Job"))]
    pub checkpoint_every: Option<f64>,
    /// Seconds of silence after which the run no longer waits for a node; 30 if not given
    #[cfg_attr(feature = "clap", arg(long, value_name = "S", help_heading = "Job"))]
    pub give_up_after: Option<f64>,
    /// Seed of the initial weights and the sample order [default: 1]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Job"))]
    pub seed: Option<u64>,
}

/// The one table of defaults, with placeholders for what the rule decides ([`Open`]). The help texts above repeat it for people; a
/// test compares the two.
pub(super) fn defaults() -> JobDraft {
    JobDraft {
        data: Some("builtin:mnist".into()),
        model: Some("dense 512, relu, dense 128, relu, dense".into()),
        from: None,
        epochs: Some(5),
        minibatch: Some(64),
        accumulate: Some(1),
        optimiser: Some("muon".into()),
        loss: Some("auto".into()),
        class_weights: Some("none".into()),
        label_smoothing: Some(0.0),
        augment: Some("none".into()),
        clip: Some("auto".into()),
        lr_schedule: Some("linear".into()),
        density: Some("auto".into()),
        tau: None,
        split: Some("random".into()),
        balanced: Some(false),
        dealt_once: Some(false),
        exchange: Some("strom".into()),
        trainers: Some("all".into()),
        validation: Some("auto".into()),
        target_accuracy: None,
        evaluations: None,
        patience: None,
        back_off: Some(true),
        keep: Some("last".into()),
        max_seconds: None,
        checkpoint_every: None,
        give_up_after: None,
        seed: Some(1),
    }
}

/// The keys that may change when a run is gone on with.
const CHANGEABLE: [&str; 9] = [
    "epochs",
    "max_seconds",
    "target_accuracy",
    "evaluations",
    "patience",
    "back_off",
    "keep",
    "checkpoint_every",
    "give_up_after",
];

/// The longest minibatch: its samples and activations must fit into memory many times over.
pub const MINIBATCH_MAX: u32 = 1 << 16;
const EPOCHS_MAX: u32 = 1 << 20;
const EVALUATIONS_MAX: u32 = 1000;
const PATIENCE_MAX: u32 = 1 << 20;
const LABEL_SMOOTHING_MAX: f64 = 0.9;

impl JobDraft {
    /// Reads a TOML file's text.
    pub fn from_toml(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// The text of a TOML file that says the same.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// The fields of `self`, and where they are missing those of `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        // A fixed τ and a density exclude each other: whoever is asked first decides between them.
        let decided = self.tau.is_some() || self.density.is_some();
        Self {
            data: self.data.or(other.data),
            model: self.model.or(other.model),
            from: self.from.or(other.from),
            epochs: self.epochs.or(other.epochs),
            minibatch: self.minibatch.or(other.minibatch),
            accumulate: self.accumulate.or(other.accumulate),
            optimiser: self.optimiser.or(other.optimiser),
            loss: self.loss.or(other.loss),
            class_weights: self.class_weights.or(other.class_weights),
            label_smoothing: self.label_smoothing.or(other.label_smoothing),
            augment: self.augment.or(other.augment),
            clip: self.clip.or(other.clip),
            lr_schedule: self.lr_schedule.or(other.lr_schedule),
            density: if decided { self.density } else { other.density },
            tau: if decided { self.tau } else { other.tau },
            split: self.split.or(other.split),
            balanced: self.balanced.or(other.balanced),
            dealt_once: self.dealt_once.or(other.dealt_once),
            exchange: self.exchange.or(other.exchange),
            trainers: self.trainers.or(other.trainers),
            validation: self.validation.or(other.validation),
            target_accuracy: self.target_accuracy.or(other.target_accuracy),
            evaluations: self.evaluations.or(other.evaluations),
            patience: self.patience.or(other.patience),
            back_off: self.back_off.or(other.back_off),
            keep: self.keep.or(other.keep),
            max_seconds: self.max_seconds.or(other.max_seconds),
            checkpoint_every: self.checkpoint_every.or(other.checkpoint_every),
            give_up_after: self.give_up_after.or(other.give_up_after),
            seed: self.seed.or(other.seed),
        }
    }

    /// What of this cannot be changed when a run is gone on with: all but when it ends, what it ends with, and what is
    /// measured and written down on the way. What has been learned so far was learned by the rest.
    #[must_use]
    pub fn fixed_keys(&self) -> Vec<String> {
        let said = toml::Table::try_from(self).unwrap_or_default();
        said.into_iter()
            .map(|(key, _)| key)
            .filter(|key| !CHANGEABLE.contains(&key.as_str()))
            .collect()
    }

    /// The settings that this leaves open. Who speaks of τ means the strategy that has one.
    fn open(&self, says_threshold: bool) -> Open {
        [
            (OpenKey::Model, self.model.is_none()),
            (OpenKey::Epochs, self.epochs.is_none()),
            (OpenKey::Minibatch, self.minibatch.is_none()),
            (OpenKey::Optimiser, self.optimiser.is_none()),
            (OpenKey::Exchange, self.exchange.is_none() && !says_threshold),
            (OpenKey::Trainers, self.trainers.is_none()),
        ]
        .into_iter()
        .filter_map(|(key, is_open)| is_open.then_some(key))
        .collect()
    }

    /// Checks everything, and fills in what is missing: with the defaults, or where the rule decides when the run begins
    /// with placeholders that are marked as open.
    pub fn resolve(self) -> Result<Job, JobErrors> {
        let says_threshold = if self.tau.is_some() {
            Some("tau")
        } else {
            self.density.as_ref().map(|_| "density")
        };
        let open = self.open(says_threshold.is_some());
        let draft = self.or(defaults());
        let mut errors = Mistakes(Vec::new());
        let data = errors.parse("data", draft.data);
        let model = errors.parse("model", draft.model);
        let from = draft.from.map(std::path::PathBuf::from);
        if from.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
            errors.add::<()>("from", "the value must be the path of a model file".into());
        }
        let optimiser = errors.parse("optimiser", draft.optimiser);
        let loss = errors.parse("loss", draft.loss).unwrap_or_default();
        let class_weights = errors.parse("class_weights", draft.class_weights).unwrap_or_default();
        let smoothing = 0.0..=LABEL_SMOOTHING_MAX;
        let label_smoothing = errors.optional("label_smoothing", draft.label_smoothing, smoothing, "between 0 and 0.9");
        let augment = errors.parse("augment", draft.augment).unwrap_or_default();
        let clip = errors.parse("clip", draft.clip);
        let lr_schedule = errors.parse("lr_schedule", draft.lr_schedule);
        let threshold = match (draft.tau, draft.density) {
            (Some(_), Some(_)) => errors.add("tau", "give either tau or density, not both".into()),
            (Some(tau), None) => errors.tau(tau),
            (None, density) => errors.parse("density", density).map(Threshold::Density),
        };
        let split = errors.parse("split", draft.split);
        let exchange = errors.exchange(&draft.exchange.unwrap_or_default(), threshold, says_threshold);
        let trainers = errors.parse("trainers", draft.trainers).unwrap_or_default();
        let validation = errors.parse("validation", draft.validation).unwrap_or_default();
        let epochs = errors.whole("epochs", draft.epochs, EPOCHS_MAX);
        let minibatch = errors.whole("minibatch", draft.minibatch, MINIBATCH_MAX);
        let accumulate = errors.whole("accumulate", draft.accumulate, MINIBATCH_MAX);
        if minibatch.saturating_mul(accumulate) > MINIBATCH_MAX
            && minibatch <= MINIBATCH_MAX
            && accumulate <= MINIBATCH_MAX
        {
            let message =
                format!("a step may have at most {MINIBATCH_MAX} samples, not {accumulate} times {minibatch}");
            errors.add::<()>("accumulate", message);
        }
        let target_accuracy = errors.optional("target_accuracy", draft.target_accuracy, 0.0..=1.0, "between 0 and 1");
        let evaluations = draft
            .evaluations
            .map(|often| errors.whole("evaluations", Some(often), EVALUATIONS_MAX));
        let patience = draft
            .patience
            .map(|patience| errors.whole("patience", Some(patience), PATIENCE_MAX));
        let keep = errors.parse("keep", draft.keep).unwrap_or_default();
        let seconds = f64::MIN_POSITIVE..=f64::MAX;
        let max_seconds = errors.optional("max_seconds", draft.max_seconds, seconds.clone(), "above 0");
        let checkpoint_every = errors.optional("checkpoint_every", draft.checkpoint_every, seconds, "above 0");
        let give_up = draft.give_up_after;
        let give_up_after = errors.optional("give_up_after", give_up, Job::GIVE_UP_AFTER, "from 5 to 3600 seconds");
        if exchange.is_some_and(|exchange| exchange.pipelines().is_some()) {
            errors.spread(from.is_some(), keep, target_accuracy.is_some());
        }
        match (data, model, optimiser, clip, lr_schedule, split, exchange) {
            (Some(data), Some(model), Some(optimiser), Some(clip), Some(lr_schedule), Some(split), Some(exchange))
                if errors.0.is_empty() =>
            {
                Job {
                    data,
                    model,
                    from,
                    epochs,
                    minibatch,
                    accumulate,
                    optimiser,
                    loss,
                    class_weights,
                    label_smoothing: label_smoothing.unwrap_or_default(),
                    augment,
                    clip,
                    lr_schedule,
                    split,
                    balanced: draft.balanced.unwrap_or_default(),
                    dealt_once: draft.dealt_once.unwrap_or_default(),
                    exchange,
                    trainers,
                    validation,
                    target_accuracy,
                    evaluations,
                    patience,
                    back_off: draft.back_off.unwrap_or_default(),
                    keep,
                    max_seconds,
                    checkpoint_every,
                    give_up_after,
                    seed: draft.seed.unwrap_or_default(),
                    open,
                }
                .if_short()
            }
            _ => Err(JobErrors(errors.0)),
        }
    }
}

impl Job {
    /// The job of a run that is gone on with, with what is to be another way from now on.
    pub fn changed(&self, changes: JobDraft) -> Result<Self, JobErrors> {
        let fixed = changes.fixed_keys();
        if fixed.is_empty() {
            let mut job = changes.or(JobDraft::from(self)).resolve()?;
            // The rows that are trained on stay the same, whatever is decided by measurements from now on.
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

    /// Seconds that a node can be waited for: long enough to tell a pause from a death.
    const GIVE_UP_AFTER: std::ops::RangeInclusive<f64> = 5.0..=3600.0;

    /// Bytes of a job's text. It is told to every node, twice a second.
    pub const TEXT_BYTES_MAX: usize = 64 << 10;

    /// The job, if its text is short enough to be told.
    fn if_short(self) -> Result<Self, JobErrors> {
        let draft = JobDraft::from(&self);
        let bytes = toml::to_string(&draft).map_or(0, |text| text.len());
        if bytes <= Self::TEXT_BYTES_MAX {
            return Ok(self);
        }
        // All else is a few words.
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

/// A job as a draft again: what a model file and `--help` show of it.
impl From<&Job> for JobDraft {
    fn from(job: &Job) -> Self {
        let open = &job.open;
        let (density, tau) = match job.exchange.threshold().filter(|_| !open.has(OpenKey::Exchange)) {
            Some(Threshold::Density(density)) => (Some(density.to_string()), None),
            Some(Threshold::Fixed(tau)) => (None, Some(f64::from(tau.value()))),
            None => (None, None),
        };
        Self {
            data: Some(job.data.to_string()),
            model: open.unless(OpenKey::Model, job.model.to_string()),
            from: job.from.as_ref().map(|file| file.display().to_string()),
            epochs: open.unless(OpenKey::Epochs, job.epochs),
            minibatch: open.unless(OpenKey::Minibatch, job.minibatch),
            accumulate: Some(job.accumulate),
            optimiser: open.unless(OpenKey::Optimiser, job.optimiser.to_string()),
            loss: Some(job.loss.to_string()),
            class_weights: Some(job.class_weights.to_string()),
            label_smoothing: Some(job.label_smoothing),
            augment: Some(job.augment.to_string()),
            clip: Some(job.clip.to_string()),
            lr_schedule: Some(job.lr_schedule.to_string()),
            density,
            tau,
            split: Some(job.split.to_string()),
            balanced: Some(job.balanced),
            dealt_once: Some(job.dealt_once),
            exchange: open.unless(OpenKey::Exchange, job.exchange.to_string()),
            trainers: open.unless(OpenKey::Trainers, job.trainers.to_string()),
            validation: Some(job.validation.to_string()),
            target_accuracy: job.target_accuracy,
            evaluations: job.evaluations,
            patience: job.patience,
            back_off: Some(job.back_off),
            keep: Some(job.keep.to_string()),
            max_seconds: job.max_seconds,
            checkpoint_every: job.checkpoint_every,
            give_up_after: job.give_up_after,
            seed: Some(job.seed),
        }
    }
}

/// Lets a file say `clip = 2.5` as well as `clip = "none"`. The wire, which does not describe itself, has the text.
fn number_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(f64),
        Text(String),
    }

    if !deserializer.is_human_readable() {
        return Option::deserialize(deserializer);
    }
    Ok(Option::<Either>::deserialize(deserializer)?.map(|either| match either {
        Either::Number(number) => number.to_string(),
        Either::Text(text) => text,
    }))
}
