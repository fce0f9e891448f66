//! The table of job keys. Each key is declared once, in [`job_keys!`] at the end of this file. The macro generates from
//! it the draft that people write, its flags and help, merging, defaults, checks and the complete job.

use std::ops::RangeInclusive;

use serde::{Deserialize, Deserializer, Serialize};

use super::key::{Any, JobKey, Limits, ModelPath, Number, Optional, Text, Whole};
use super::mistakes::Mistakes;
use super::{Exchange, Keep, Open, Trainers, Validation};
use crate::job::augment::Augment;
use crate::job::clip::Clip;
use crate::job::data::DataSpec;
use crate::job::loss::{ClassWeights, Loss};
use crate::job::model::ModelSpec;
use crate::job::optimiser::Optimiser;
use crate::job::schedule::Schedule;
use crate::job::split::Split;

/// Expands to the help text of a key: its own text, or its description with the default as people are shown it.
#[cfg(feature = "clap")]
macro_rules! help {
    ($about:literal $(default $default:literal)? $(shown $shown:literal)? help $help:expr) => {
        $help
    };
    ($about:literal) => {
        $about.trim_start()
    };
    ($about:literal default $default:literal) => {
        concat!($about, " [default: ", $default, "]").trim_start()
    };
    ($about:literal $(default $default:literal)? shown $shown:literal) => {
        concat!($about, " [default: ", $shown, "]").trim_start()
    };
}

/// Declares job keys. A row of the table is
/// `"VALUE" key: TypeInDraft => Kind, default D, shown "default for people", open Name, resume may_change, serde(…),
/// clap(…), help TEXT;`
/// where everything after the type is optional. A key without a kind is checked together with others, and one without a
/// default may be left out. `open` marks a setting that is decided when a run begins if a job leaves it out; `resume`
/// marks a key that a resumed run may change. The order of the rows is the order in job files and on the wire.
macro_rules! job_keys {
    ($(
        #[doc = $about:literal]
        $value_name:literal $key:ident: $draft:ty $(=> $kind:ty)?
        $(, default $default:literal)? $(, shown $shown:literal)? $(, open $open:ident)? $(, resume $may_change:ident)?
        $(, serde($($serde:tt)*))? $(, clap($($clap:tt)*))? $(, help $help:expr)?;
    )+) => {
        /// Draft of a job, in which any key may be missing. It is filled from command-line flags, or from a TOML file
        /// whose keys are the flags with `_` for `-`.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "clap", derive(clap::Args))]
        #[serde(deny_unknown_fields, default)]
        pub struct JobDraft {
            $(
                #[doc = $about]
                $(#[serde($($serde)*)])?
                #[cfg_attr(feature = "clap", arg(
                    long,
                    value_name = $value_name,
                    help = help!($about $(default $default)? $(shown $shown)? $(help $help)?),
                    help_heading = "Job",
                    $($($clap)*)?
                ))]
                pub $key: Option<$draft>,
            )+
        }

        /// A complete, valid job.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(try_from = "JobDraft", into = "JobDraft")]
        pub struct Job {
            $($(
                #[doc = $about]
                pub $key: <$kind as JobKey>::Value,
            )?)+
            /// Strategy by which nodes exchange weight changes, with its τ or density.
            pub exchange: Exchange,
            /// Settings that the job left out and that are not decided yet. Their fields hold placeholders until the
            /// run begins.
            pub open: Open,
        }

        /// Setting that a job may leave out, so that it is decided from the data, the model and the number of workers
        /// when a run begins.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum OpenKey {
            $($(
                #[doc = $about]
                $open,
            )?)+
        }

        impl OpenKey {
            /// All settings that a job may leave out to have them decided when a run begins.
            pub(super) const ALL: &[Self] = &[$($(Self::$open,)?)+];

            /// Returns the key's name in TOML.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($(Self::$open => stringify!($key),)?)+
                }
            }
        }

        impl JobDraft {
            /// Returns a draft with the defaults of all keys that have one. For a setting that is decided when a run
            /// begins, the default is only a placeholder.
            pub(super) fn defaults() -> Self {
                Self {
                    $($key: None$(.or(Some($default.into())))?,)+
                }
            }

            /// Returns this draft with its missing keys taken from `other`.
            pub(super) fn or_each(self, other: Self) -> Self {
                Self {
                    $($key: self.$key.or(other.$key),)+
                }
            }

            /// Names of the keys that a resumed run may change.
            pub const CHANGEABLE: &[&str] = &[$($(if_given!($may_change, stringify!($key)),)?)+];

            /// Returns the settings that this draft leaves out and that are therefore decided when the run begins, from
            /// its data, model and workers.
            pub(super) fn left_out(&self) -> impl Iterator<Item = OpenKey> {
                [$($((OpenKey::$open, self.$key.is_none()),)?)+]
                    .into_iter()
                    .filter_map(|(key, is_left_out)| is_left_out.then_some(key))
            }

            /// Returns the draft without the values of the settings in `open`, which the job left out: they are only
            /// placeholders.
            pub(super) fn without(mut self, open: &Open) -> Self {
                $($(
                    if open.has(OpenKey::$open) {
                        self.$key = None;
                    }
                )?)+
                self
            }

            /// Returns a draft with the job's values of all keys that are checked one by one: all but the exchange
            /// strategy and its τ or density.
            pub(super) fn of_keys(job: &Job) -> Self {
                let mut draft = Self::default();
                $($(draft.$key = <$kind as JobKey>::write(&job.$key);)?)+
                draft
            }
        }

        /// Values of all keys that are checked one by one (not the exchange strategy with its τ or density, which are
        /// checked together). A value is `None` if it is a mistake.
        pub(super) struct CheckedKeys {
            $($(pub(super) $key: Option<<$kind as JobKey>::Value>,)?)+
        }

        impl CheckedKeys {
            /// Checks the values of a draft in which the defaults have been filled in, and adds those that are invalid
            /// to `mistakes`.
            pub(super) fn new(draft: &JobDraft, mistakes: &mut Mistakes) -> Self {
                Self {
                    $($($key: mistakes.check::<$kind>(stringify!($key), draft.$key.clone()),)?)+
                }
            }

            /// Returns the complete job, or `None` if a value is a mistake.
            pub(super) fn job(self, exchange: Exchange, open: Open) -> Option<Job> {
                Some(Job {
                    $($($key: if_given!($kind, self.$key?),)?)+
                    exchange,
                    open,
                })
            }
        }
    };
}

/// Most samples in one step of a worker: samples and activations must fit into memory many times over.
pub const MINIBATCH_MAX: u32 = 1 << 16;
const EPOCHS_MAX: u32 = 1 << 20;
const EVALUATIONS_MAX: u32 = 1000;
const PATIENCE_MAX: u32 = 1 << 20;

/// Limits of the label smoothing: the share of each label that is spread over all classes. For keys of kind [`Number`].
pub struct Smoothing;

impl Limits for Smoothing {
    const RANGE: RangeInclusive<f64> = 0.0..=0.9;
    const WORDS: &str = "between 0 and 0.9";
}

/// Limits of an accuracy, for keys of kind [`Number`].
pub struct Accuracy;

impl Limits for Accuracy {
    const RANGE: RangeInclusive<f64> = 0.0..=1.0;
    const WORDS: &str = "between 0 and 1";
}

/// Limits of a loss that a run is to reach, for keys of kind [`Number`].
pub struct EvalLoss;

impl Limits for EvalLoss {
    const RANGE: RangeInclusive<f64> = f64::MIN_POSITIVE..=f64::MAX;
    const WORDS: &str = "above 0";
}

/// Limits of a duration in seconds, for keys of kind [`Number`].
pub struct Seconds;

impl Limits for Seconds {
    const RANGE: RangeInclusive<f64> = f64::MIN_POSITIVE..=f64::MAX;
    const WORDS: &str = "above 0";
}

/// Limits of the seconds of silence after which a node is given up, for keys of kind [`Number`]: long enough to tell a
/// pause from a death.
pub struct Silence;

impl Limits for Silence {
    const RANGE: RangeInclusive<f64> = 5.0..=3600.0;
    const WORDS: &str = "from 5 to 3600 seconds";
}

job_keys! {
    /// Source of the samples: builtin:mnist, csv:FILE?label=COLUMN&test=0.2 and more options, parquet:FILE, npz:FILE, images:DIR, cifar:DIR, idx:DIR, or module (the samples that the model's file makes)
    "SPEC" data: String => Text<DataSpec>, default "builtin:mnist", shown "builtin:mnist, or module for --model py:FILE";
    /// Layers of the network, separated by commas
    "LAYERS" model: String => Text<ModelSpec>, default "dense 512, relu, dense 128, relu, dense",
        open Model, help crate::job::model::help();
    /// Model file to take the initial weights from: tensors of the same key and size are copied, all others start from random values. Its path is resolved like that of the data
    "MODEL" from: String => Optional<ModelPath>;
    /// Passes over the training samples
    "N" epochs: u32 => Whole<EPOCHS_MAX>, default 5_u32, shown "by the number of rows", open Epochs, resume may_change;
    /// Samples in one minibatch of one worker
    "N" minibatch: u32 => Whole<MINIBATCH_MAX>, default 64_u32, shown "by the number of rows, 64 for images",
        open Minibatch;
    /// Minibatches whose gradients are added up for one step: N has the effect of a minibatch N times as large, in less memory
    "N" accumulate: u32 => Whole<MINIBATCH_MAX>, default 1_u32;
    /// Optimiser that turns gradients into weight updates
    "RULE" optimiser: String => Text<Optimiser>, default "muon", open Optimiser, serde(alias = "optimizer"),
        clap(alias = "optimizer"), help crate::job::optimiser::HELP;
    /// Loss function: cross-entropy for classes; mse, mae or huber for numbers; auto takes cross-entropy or mse, as the data needs
    "LOSS" loss: String => Text<Loss>, default "auto";
    /// Weight of each class in the loss: none, auto (the rarer the class, the higher), or a number for each class, separated by commas
    "WEIGHTS" class_weights: String => Text<ClassWeights>, default "none";
    /// Share of each label that is spread evenly over all classes, from 0 to 0.9; 0.1 makes a model less overconfident
    "SHARE" label_smoothing: f64 => Number<Smoothing>, default 0.0, shown "0";
    /// Augmentation of training images, drawn anew at each use: none, flip (half of them mirrored), crop=N (shifted by up to N pixels), or flip,crop=N
    "WAYS" augment: String => Text<Augment>, default "none";
    /// Norm that gradients are clipped to, "none", or "auto": 1 if several workers train or sgd predicts numbers, else none
    "NORM" clip: String => Text<Clip>, default "auto", serde(deserialize_with = "number_or_text");
    /// Learning-rate schedule: constant, linear, cosine or step:every=SHARE,factor=F, each with warmup=SHARE if wanted
    "CURVE" lr_schedule: String => Text<Schedule>, default "linear";
    /// Fraction of the weights that a batch changes; τ is adjusted to reach it. auto[:bytes=N] takes 0.002, or more for small models, many workers or few steps, and at most N bytes per batch
    "FRACTION" density: String, default "auto", serde(deserialize_with = "number_or_text"),
        clap(conflicts_with = "tau");
    /// Fixed size of one weight change (τ), instead of a density
    "X" tau: f64;
    /// Assignment of samples to workers: random, equal (as many of each class for every worker) or class (classes of its own for each worker)
    "SPLIT" split: String => Text<Split>, default "random";
    /// Give each minibatch the classes in the data's proportion
    "BOOL" balanced: bool => Any<bool>, default false,
        clap(num_args = 0..=1, require_equals = true, default_missing_value = "true");
    /// Keep the first epoch's assignment of samples to workers, instead of drawing a new one for every epoch
    "BOOL" dealt_once: bool => Any<bool>, default false,
        clap(num_args = 0..=1, require_equals = true, default_missing_value = "true");
    /// Strategy by which nodes exchange weight changes
    "STRATEGY" exchange: String, default "strom", open Exchange, help super::exchange::help();
    /// Number of workers that train at the same time, or all; the others only follow, and take over if a training worker is lost
    "N" trainers: String => Text<Trainers>, default "all",
        shown "1 for a run that one worker finishes in some seconds, else all", open Trainers,
        serde(deserialize_with = "number_or_text");
    /// Validation rows, which --patience, --keep best, --target-accuracy and --target-loss decide by: a share of the training rows, test (the test rows themselves), or auto (a tenth of the training rows if one of the four is given, else none)
    "ROWS" validation: String => Text<Validation>, default "auto", serde(deserialize_with = "number_or_text");
    /// End the run when the accuracy on the validation rows (R² for numbers) reaches this
    "A" target_accuracy: f64 => Optional<Number<Accuracy>>, resume may_change;
    /// End the run when the loss on the validation rows is at or below this; with --target-accuracy, when both are reached
    "L" target_loss: f64 => Optional<Number<EvalLoss>>, resume may_change;
    /// Evaluations of the model per epoch
    "N" evaluations: u32 => Optional<Whole<EVALUATIONS_MAX>>, shown "1; 16 with a target", resume may_change;
    /// End the run when this many evaluations in a row have brought no lower loss on the validation rows; see --evaluations
    "N" patience: u32 => Optional<Whole<PATIENCE_MAX>>, resume may_change;
    /// If the run diverges, train it once more from the beginning at half the learning rate
    "BOOL" back_off: bool => Any<bool>, default true, resume may_change,
        clap(num_args = 0..=1, require_equals = true, default_missing_value = "true");
    /// Weights that the run ends with: last, or best (of all evaluated weights, those with the lowest loss on the validation rows)
    "WHICH" keep: String => Text<Keep>, default "last", resume may_change;
    /// End the run after this many seconds of training
    "S" max_seconds: f64 => Optional<Number<Seconds>>, resume may_change;
    /// Seconds between two checkpoints
    "S" checkpoint_every: f64 => Optional<Number<Seconds>>, resume may_change;
    /// Seconds of silence after which the run no longer waits for a node; 30 if not given
    "S" give_up_after: f64 => Optional<Number<Silence>>, resume may_change;
    /// Seed of the initial weights and the sample order
    "N" seed: u64 => Any<u64>, default 1_u64;
}

/// Deserialises a number or a text as a text, so that a file may say `clip = 2.5` as well as `clip = "none"`. The wire
/// format does not describe its values and always carries the text.
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
