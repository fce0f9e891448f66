//! The rule for all settings that a job leaves open: one pure function of the data, the model and the number of
//! workers.
//!
//! There are two kinds of runs. A *short* run is one that a single worker finishes in some seconds: exchanging every
//! step would take longer than the steps, and several workers would have too few samples each. One worker trains it,
//! small tables with Adam, and emits the whole difference once per epoch; the others apply its batches and take over if
//! that worker is lost. A short run therefore ends with the same weights on any number of nodes. Every other run is
//! trained by all workers with orthogonal updates, which are exchanged as changes of ±τ.
//!
//! `docs/defaults.md` has the experiment behind the numbers.

use super::{Density, Exchange, Job, JobDraft, OpenKey, RoundLength, RoundTopology, Rounds, Threshold, Trainers};
use crate::job::clip::Clip;
use crate::job::data::DataInfo;
use crate::job::model::{Layout, ModelError, ModelSpec, Shape};
use crate::job::optimiser::{Optimiser, Rule};
use crate::job::target::TargetInfo;

/// Facts of a run, by which the settings that the job left out are decided when the run begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunFacts {
    pub rows: u64,
    pub input: Shape,
    pub target: TargetInfo,
    pub weights: usize,
    /// Number of multiplications that the model computes for one sample.
    pub products: u64,
    /// Number of workers that take part in the run from the beginning.
    pub workers: usize,
}

impl RunFacts {
    /// Returns the facts of a run that trains a model on this data with `workers` workers.
    #[must_use]
    pub fn of(data: &DataInfo, layout: &Layout, workers: usize) -> Self {
        Self {
            products: layout.products(),
            ..Self::of_module(data, layout.weights, workers)
        }
    }

    /// Returns the facts of a run that trains a model whose layers are unknown: each weight is assumed to be multiplied
    /// once for each sample.
    #[must_use]
    pub fn of_module(data: &DataInfo, weights: usize, workers: usize) -> Self {
        Self {
            rows: data.train,
            input: data.input,
            target: data.target,
            weights,
            products: weights as u64,
            workers,
        }
    }

    /// Returns true if the samples are rows of a table: neither images nor the samples of a module's own code.
    fn by_adam(&self) -> bool {
        matches!(self.input, Shape::Flat(_)) && self.target != TargetInfo::Module
    }
}

/// Most floating-point operations of a run that counts as short: about some seconds of one core. A short run is trained
/// by one worker unless the job says otherwise.
const SHORT_OPERATIONS: f64 = 2e10;
/// Floating-point operations of a training step for each multiplication of the model: a multiplication and an addition,
/// forward and twice backward.
const OPERATIONS_PER_PRODUCT: f64 = 6.0;

/// Default number of epochs times the square root of the number of rows, for tables; `EPOCHS_OF_IMAGES` is that for
/// images. With four times as many rows, a run thus takes twice as many steps.
const EPOCHS_OF_TABLES: f64 = 2770.0;
const EPOCHS_OF_IMAGES: f64 = 1200.0;
const EPOCHS_MIN: f64 = 5.0;
const EPOCHS_MAX: f64 = 300.0;

const MINIBATCH_OF_TABLES: u64 = 32;
const MINIBATCH_OF_IMAGES: u64 = 64;
/// Largest default minibatch, for tables of many rows.
const MINIBATCH_OF_LARGE_TABLES: u64 = 128;
/// Number of steps in an epoch for which default minibatches of tables are chosen, within a smallest and a largest
/// size.
const STEPS_OF_AN_EPOCH: u64 = 625;
/// Number by which the rows of a tiny table are divided for its largest default minibatch, so that an epoch has several
/// steps.
const STEPS_OF_A_TINY_EPOCH: u64 = 3;
const MINIBATCH_MIN: u64 = 4;
/// Number of steps of a run below which default minibatches become smaller, where the job sets the number of epochs.
const STEPS_MIN: u64 = 500;

/// Default learning rate of Adam for tables of up to [`ROWS_OF_RATE`] rows. It grows from there with a power of the
/// number of rows, `RATE_POWER`: few rows contain noise that long steps would learn by heart.
const RATE: f64 = 0.003;
const ROWS_OF_RATE: f64 = 500.0;
const RATE_POWER: f64 = 0.4;
const RATE_MAX: f64 = 0.01;
/// Number of steps of a run below which Adam's default learning rate is higher: by the square root of this number over
/// the run's steps.
const STEPS_OF_RATE: f64 = 1000.0;
const RATE_FACTOR_MAX: f64 = 4.0;
const RATE_OF_FEW_STEPS_MAX: f64 = 0.02;
/// Number of rows from which on tables are trained with orthogonal updates by default, like images.
const ROWS_OF_ORTHOGONAL: u64 = 8000;
/// Number of training steps of all workers together below which tables are trained with Adam by default, regardless of
/// the numbers of workers and rows.
const STEPS_OF_ADAM: u64 = 2000;
/// Default weight decay over a whole run: the natural logarithm of the factor by which it alone would shrink a weight.
/// Numbers to predict contain more noise than classes, so `DECAY_OF_NUMBERS` is larger.
const DECAY: f64 = 0.9;
const DECAY_OF_NUMBERS: f64 = 1.5;
const WEIGHT_DECAY_MAX: f64 = 0.9;

/// Norm to which gradients are clipped by default if the model predicts numbers and the update rule follows the
/// gradient's size, such as gradient descent.
const NORM: f64 = 1.0;

/// Number of neurons in the hidden layer of the default model for tables.
const WIDTH: usize = 100;
/// Height and width in pixels down to which the default model's convolutions shrink images before the dense layers.
const SIDE_MAX: usize = 8;
/// Height and width in pixels below which the default model treats images as tables.
const SIDE_MIN: usize = 8;
/// Channels after the first convolution of the default model. Each further convolution doubles them, up to
/// `CHANNELS_MAX`.
const CHANNELS: usize = 16;
const CHANNELS_MAX: usize = 64;
const WIDTH_OF_IMAGES: usize = 128;

/// Returns the default model for samples of this shape.
fn model_for(input: Shape) -> ModelSpec {
    let mut layers = Vec::new();
    let mut width = WIDTH;
    if let Shape::Image {
        height, width: wide, ..
    } = input
        && height.min(wide) >= SIDE_MIN
    {
        let (mut side, mut channels) = (height.max(wide), CHANNELS);
        let mut form = "5x5 stride 2 pad 2";
        // A single convolution sees too little of an image.
        while side > SIDE_MAX || channels <= 2 * CHANNELS {
            layers.push(format!("conv {channels} {form}, relu"));
            (side, channels) = (side.div_ceil(2), (2 * channels).min(CHANNELS_MAX));
            form = "3x3 stride 2 pad 1";
        }
        layers.push("flatten".into());
        width = WIDTH_OF_IMAGES;
    }
    layers.push(format!("dense {width}, relu, dense"));
    let text = layers.join(", ");
    text.parse().expect("the default model text must parse")
}

impl Job {
    /// Returns the job with a model: its own, or the default for samples of this shape if the model was left open.
    #[must_use]
    pub fn for_data(&self, input: Shape) -> Self {
        let mut job = self.clone();
        if job.open.has(OpenKey::Model) {
            job.model = model_for(input);
            job.open.close(OpenKey::Model);
        }
        job
    }

    /// True if `decided` may be this job as a run executes it: both are the same apart from the settings that this job
    /// leaves out, which are decided when the run begins.
    #[must_use]
    pub fn may_become(&self, decided: &Self) -> bool {
        let fixed = |job: &Self| {
            let draft = JobDraft::from(job).without(&self.open);
            JobDraft {
                // A learning rate, a norm and a density may have been left open within these settings.
                optimiser: None,
                clip: None,
                density: None,
                ..draft
            }
        };
        fixed(self) == fixed(decided)
    }

    /// Returns the job with all settings decided for this data, this number of weights and this number of workers.
    pub fn decided_for(&self, data: &DataInfo, weights: usize, workers: usize) -> Result<Self, ModelError> {
        let job = self.for_data(data.input);
        let facts = match &job.model {
            ModelSpec::Module(_) => RunFacts::of_module(data, weights, workers),
            ModelSpec::Layers(_) => {
                let layout = Layout::new(&job.model, data.input, data.target.outputs())?;
                RunFacts::of(data, &layout, workers)
            }
        };
        Ok(job.decided_by(&facts))
    }

    /// True if the run's first weights do not follow from the job's seed alone: workers read them from a model file, or
    /// a module draws them, and send them to their node.
    #[must_use]
    pub fn begins_with_told_weights(&self) -> bool {
        self.from.is_some() || self.model.module().is_some()
    }

    /// Returns true if each node draws the run's first weights by itself, and nodes may draw different ones: a module
    /// draws them with PyTorch, whose random numbers differ between releases and kinds of processors.
    #[must_use]
    pub fn nodes_draw_weights(&self) -> bool {
        self.from.is_none() && self.model.module().is_some()
    }

    /// Returns the job with all settings that it leaves out decided from these facts of the run (data, model and number
    /// of workers).
    #[must_use]
    pub fn decided_by(&self, facts: &RunFacts) -> Self {
        let mut job = self.clone();
        job.decide_length(facts);
        job.decide_exchange(facts);
        job.decide_optimiser(facts);
        job.decide_threshold(facts);
        for &key in OpenKey::ALL.iter().filter(|&&key| key != OpenKey::Model) {
            job.open.close(key);
        }
        job
    }

    /// Returns the number of training steps of all workers together, for data of this number of rows.
    fn steps(&self, rows: u64) -> u64 {
        (rows * u64::from(self.epochs)).div_ceil(u64::from(self.step_samples()))
    }

    /// Returns the number of training steps of one worker in the run.
    fn steps_of_one(&self, facts: &RunFacts) -> u64 {
        (self.steps(facts.rows) / self.trainers.among(facts.workers).max(1) as u64).max(1)
    }

    fn decide_length(&mut self, facts: &RunFacts) {
        let rows = facts.rows.max(1);
        if self.open.has(OpenKey::Epochs) {
            let wanted = if facts.by_adam() {
                EPOCHS_OF_TABLES
            } else {
                EPOCHS_OF_IMAGES
            };
            let epochs = (wanted / (rows as f64).sqrt()).clamp(EPOCHS_MIN, EPOCHS_MAX);
            self.epochs = epochs.round() as u32;
        }
        if self.open.has(OpenKey::Minibatch) {
            let usual = if facts.by_adam() && self.exchange.pipelines().is_none() {
                (rows / STEPS_OF_AN_EPOCH).clamp(MINIBATCH_OF_TABLES, MINIBATCH_OF_LARGE_TABLES)
            } else {
                MINIBATCH_OF_IMAGES
            };
            let mut most = rows / STEPS_OF_A_TINY_EPOCH;
            if !self.open.has(OpenKey::Epochs) {
                most = most.min(rows * u64::from(self.epochs) / STEPS_MIN);
            }
            let minibatch = usual.min(most.max(MINIBATCH_MIN));
            // Rounds down to a power of two.
            self.minibatch = 1 << minibatch.ilog2();
        }
    }

    fn is_short(&self, facts: &RunFacts) -> bool {
        let samples = facts.rows as f64 * f64::from(self.epochs);
        OPERATIONS_PER_PRODUCT * facts.products as f64 * samples <= SHORT_OPERATIONS
    }

    fn decide_exchange(&mut self, facts: &RunFacts) {
        if !self.open.has(OpenKey::Exchange) {
            return;
        }
        if self.open.has(OpenKey::Trainers) && self.is_short(facts) {
            self.trainers = Trainers::AtMost(1);
        }
        if self.trainers == Trainers::AtMost(1) {
            // Only emitted weights can be evaluated, so an epoch has a round for each evaluation.
            let every = match u64::from(self.evaluations_per_epoch()) {
                1 => RoundLength::Epoch,
                parts => {
                    let steps = facts.rows.div_ceil(u64::from(self.step_samples()));
                    RoundLength::Steps((steps / parts).max(1) as u32)
                }
            };
            self.exchange = Exchange::Rounds(Rounds {
                topology: RoundTopology::Mesh,
                every,
                weighting: None,
            });
        }
    }

    fn decide_optimiser(&mut self, facts: &RunFacts) {
        let steps = self.steps(facts.rows);
        let has_one_trainer = self.trainers == Trainers::AtMost(1);
        let is_small = facts.by_adam() && (steps < STEPS_OF_ADAM || has_one_trainer && facts.rows < ROWS_OF_ORTHOGONAL);
        let is_open = self.open.has(OpenKey::Optimiser);
        if is_open && is_small {
            self.optimiser = Optimiser {
                learning_rate: adam_rate(facts.rows, self.steps_of_one(facts)),
                ..Optimiser::ADAM
            };
        }
        self.optimiser = self.optimiser.for_steps(steps);
        self.optimiser.learning_rate = significant(self.optimiser.learning_rate);
        if is_open && (is_small || has_one_trainer) {
            // With a schedule that falls to zero, the mean rate is half of the first one.
            let way = self.optimiser.learning_rate * self.steps_of_one(facts) as f64 / 2.0;
            let wanted = match facts.target {
                TargetInfo::Classes(_) | TargetInfo::Module => DECAY,
                TargetInfo::Numbers(_) => DECAY_OF_NUMBERS,
            };
            self.optimiser.weight_decay = significant((wanted / way).min(WEIGHT_DECAY_MAX)) as f32;
        }
        let overshoots = self.optimiser.rule.follows_gradient_size() && matches!(facts.target, TargetInfo::Numbers(_));
        if self.clip == Clip::Auto && overshoots {
            self.clip = Clip::Norm(NORM);
        }
    }

    fn decide_threshold(&mut self, facts: &RunFacts) {
        let (rule, workers, steps): (Rule, _, _) = (self.optimiser.rule, facts.workers, self.steps_of_one(facts));
        if let Exchange::Strom(threshold) = &mut self.exchange
            && let Threshold::Density(density) = threshold
        {
            let fraction = density.among(rule, facts.weights, workers, Some(steps));
            *threshold = Threshold::Density(Density::Fraction(significant(fraction)));
        }
    }
}

/// Returns Adam's default learning rate for a table of `rows` rows, if one worker makes `steps` steps.
fn adam_rate(rows: u64, steps: u64) -> f64 {
    let by_rows = (RATE * (rows as f64 / ROWS_OF_RATE).powf(RATE_POWER)).clamp(RATE, RATE_MAX);
    let longer = (STEPS_OF_RATE / steps as f64).sqrt().clamp(1.0, RATE_FACTOR_MAX);
    (by_rows * longer).min(RATE_OF_FEW_STEPS_MAX)
}

/// Rounds a number to three significant digits, because people read it.
fn significant(number: f64) -> f64 {
    format!("{number:.2e}").parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(toml: &str) -> Job {
        JobDraft::from_toml(toml).unwrap().resolve().unwrap()
    }

    fn data(rows: u64, input: Shape, target: TargetInfo) -> DataInfo {
        DataInfo {
            train: rows,
            input,
            target,
            ..DataInfo::example()
        }
    }

    fn decided(toml: &str, data: &DataInfo, workers: usize) -> Job {
        job(toml).decided_for(data, 0, workers).unwrap()
    }

    fn iris() -> DataInfo {
        data(120, Shape::Flat(4), TargetInfo::Classes(3))
    }

    fn digits() -> DataInfo {
        let input = Shape::Image {
            channels: 1,
            height: 28,
            width: 28,
        };
        data(60_000, input, TargetInfo::Classes(10))
    }

    #[test]
    fn a_short_run_is_the_same_on_any_number_of_nodes() {
        let one = decided("", &iris(), 1);
        assert_eq!(decided("", &iris(), 3), one);
        assert_eq!(decided("", &iris(), 100), one);
        assert_eq!(one.model.to_string(), "dense 100, relu, dense");
        assert_eq!(one.trainers, Trainers::AtMost(1));
        assert_eq!(one.exchange.to_string(), "mesh:every=epoch,async");
        assert_eq!((one.epochs, one.minibatch), (253, 32));
        assert_eq!(
            decided("evaluations = 2", &iris(), 1).exchange.to_string(),
            "mesh:every=2,async"
        );
        assert!(matches!(one.optimiser.rule, Rule::Adam { .. }));
        assert_eq!(one.open, super::super::Open::default());
    }

    #[test]
    fn a_long_run_is_trained_by_all_with_changes_of_tau() {
        let job = decided("", &digits(), 3);
        assert_eq!((job.epochs, job.minibatch, job.trainers), (5, 64, Trainers::All));
        assert_eq!(job.optimiser.to_string(), "muon:0.01");
        assert_eq!(
            job.exchange,
            Exchange::Strom(Threshold::Density(Density::Fraction(0.002)))
        );
        // With ten workers, each makes fewer steps.
        let ten = decided("", &digits(), 10);
        assert_eq!(
            ten.exchange,
            Exchange::Strom(Threshold::Density(Density::Fraction(0.00385)))
        );
        let table = data(1_000_000, Shape::Flat(30), TargetInfo::Numbers(1));
        let job = decided("", &table, 10);
        assert_eq!((job.epochs, job.minibatch, job.trainers), (5, 128, Trainers::All));
        assert!(matches!(job.optimiser.rule, Rule::Muon(_)));
    }

    #[test]
    fn what_a_job_says_is_kept() {
        let said = r#"
            model = "dense 7, relu, dense"
            epochs = 9
            minibatch = 10
            optimiser = "sgd:0.08,momentum=0.9"
            exchange = "ring"
        "#;
        let job = decided(said, &iris(), 3);
        assert_eq!(
            job,
            Job {
                trainers: Trainers::All,
                open: job.open.clone(),
                ..self::job(said)
            }
        );
        // A job that sets a density or the number of trainers asks for more than the rule knows.
        assert!(matches!(
            decided("density = 0.01", &iris(), 3).exchange,
            Exchange::Strom(_)
        ));
        let all = decided("trainers = \"all\"", &iris(), 3);
        assert!(matches!(
            (all.exchange, all.trainers),
            (Exchange::Strom(_), Trainers::All)
        ));
    }

    #[test]
    fn a_job_of_few_epochs_has_small_minibatches_and_long_steps() {
        let few = decided("epochs = 20", &iris(), 1);
        assert_eq!((few.epochs, few.minibatch), (20, 4));
        let usual = decided("", &iris(), 1);
        assert!(few.optimiser.learning_rate > usual.optimiser.learning_rate);
    }

    #[test]
    fn rates_and_decay_are_bounded_from_one_row_to_millions() {
        for rows in [1, 2, 10, 100, 1000, 10_000, 100_000, 10_000_000] {
            for target in [TargetInfo::Classes(2), TargetInfo::Numbers(1)] {
                for workers in [1, 3, 100] {
                    let job = decided("", &data(rows, Shape::Flat(10), target), workers);
                    assert!(
                        (0.001..=0.04).contains(&job.optimiser.learning_rate),
                        "{rows}: {}",
                        job.optimiser
                    );
                    assert!(job.optimiser.weight_decay <= WEIGHT_DECAY_MAX as f32);
                    assert!((4..=128).contains(&job.minibatch) && (5..=300).contains(&job.epochs));
                    // A decided job is sent and read back unchanged.
                    let sent = JobDraft::from(&job).resolve().unwrap();
                    assert_eq!(sent, job);
                    assert_eq!(
                        sent.decided_for(&data(rows, Shape::Flat(10), target), 0, 7).unwrap(),
                        job
                    );
                }
            }
        }
    }

    #[test]
    fn a_rule_that_follows_gradients_is_clipped_where_numbers_are_predicted() {
        let numbers = data(400, Shape::Flat(10), TargetInfo::Numbers(1));
        let said = "optimiser = \"sgd:0.08,momentum=0.9\"";
        assert_eq!(decided(said, &numbers, 1).clip, Clip::Norm(NORM));
        assert_eq!(decided(said, &iris(), 1).clip, Clip::Auto);
        assert_eq!(decided("clip = \"none\"", &numbers, 1).clip, Clip::Never);
    }

    #[test]
    fn images_get_convolutions_down_to_a_few_pixels() {
        let of = |side| {
            model_for(Shape::Image {
                channels: 3,
                height: side,
                width: side,
            })
            .to_string()
        };
        let two = "conv 16 5x5 stride 2 pad 2, relu, conv 32 3x3 stride 2 pad 1, relu, flatten, dense 128, relu, dense";
        assert_eq!((of(28), of(32)), (two.into(), two.into()));
        assert_eq!(of(64).matches("conv").count(), 3);
        assert_eq!(of(5), "dense 100, relu, dense");
        for side in [8, 16, 100, 224] {
            let input = Shape::Image {
                channels: 3,
                height: side,
                width: side,
            };
            assert!(Layout::new(&model_for(input), input, 10).is_ok(), "{side}");
        }
    }

    #[test]
    fn a_run_is_known_by_what_its_job_said() {
        let asked = job("seed = 3\noptimiser = \"muon\"");
        let given = asked.decided_for(&iris(), 0, 3).unwrap();
        assert!(asked.may_become(&given) && given.may_become(&given));
        assert!(!job("seed = 4").may_become(&given));
        assert!(!job("seed = 3\nepochs = 7").may_become(&given));
    }
}
