//! One figure of the [table](super::figures): what it measures, and how views show it.

use serde::Serialize;

/// What a figure is measured in. Views choose its format by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Samples.
    Samples,
    /// Samples per second.
    SamplesPerSecond,
    /// The loss function's value.
    Loss,
    /// Accuracy, or R² where numbers are predicted.
    Quality,
    /// Units of the predicted numbers.
    Target,
    /// The size of one weight change.
    WeightChange,
    /// A share that is far below 1.
    Density,
    /// A share.
    Share,
    /// Bytes.
    Bytes,
    /// Batches.
    Batches,
    /// Rounds.
    Rounds,
    /// Seconds.
    Seconds,
    /// Processor cores.
    Cores,
    /// GPUs.
    Gpus,
    /// The Euclidean norm of weights. It is no number in a run that diverges.
    Norm,
}

impl Unit {
    /// The unit in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::SamplesPerSecond => "samples/s",
            Self::Loss => "loss",
            Self::Quality => "share, or R²",
            Self::Target => "as the numbers",
            Self::WeightChange => "weight",
            Self::Density | Self::Share => "share",
            Self::Bytes => "bytes",
            Self::Batches => "batches",
            Self::Rounds => "rounds",
            Self::Seconds => "seconds",
            Self::Cores => "cores",
            Self::Gpus => "GPUs",
            Self::Norm => "norm",
        }
    }
}

/// Runs and nodes that a figure says something about. Views leave it out elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// All.
    Always,
    /// Runs of several nodes: one alone exchanges nothing.
    SeveralNodes,
    /// Nodes that train on GPUs.
    Gpus,
    /// Runs whose strategy has rounds.
    Rounds,
    /// Nodes of which it is not zero.
    NonZero,
}

/// The column of a figure in the terminal's table of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FigureColumn {
    /// Its title where space is short.
    pub title: &'static str,
    /// Its title with the unit.
    pub long: &'static str,
    /// Narrow terminals leave out the columns of the highest rank first.
    pub rank: u8,
}

/// One figure of a record or a result of type `R`.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the flags are independent, and named where they are set"
)]
pub struct Figure<R> {
    /// The name of its field.
    pub name: &'static str,
    /// What it measures, without a full stop.
    pub meaning: &'static str,
    /// What it is measured in.
    pub unit: Unit,
    /// Its name for Prometheus.
    pub prometheus: &'static str,
    /// Whether it only grows while a run goes on.
    pub is_counter: bool,
    /// Whether the last value of a silent node still says something. Other figures are of the last second.
    pub lasts: bool,
    /// Its title on pages; none where these do not show it.
    pub title: Option<&'static str>,
    /// Its column in the terminal.
    pub column: Option<FigureColumn>,
    /// Whether tables of nodes show its growth per second, instead of its value.
    pub is_rate: bool,
    /// Whether the terminal can sort nodes by it.
    pub sorts: bool,
    /// Whether the live page's table of nodes has it.
    pub on_page: bool,
    /// Where it says something.
    pub applies: Applies,
    /// Its title in reports of studies; none where these do not show it.
    pub study: Option<&'static str>,
    /// Its value; none if it is not known.
    pub of: fn(&R) -> Option<f64>,
}

/// A figure that goes up and down.
pub(super) const fn gauge<R>(prometheus: &'static str, unit: Unit) -> Figure<R> {
    Figure {
        name: "",
        meaning: "",
        unit,
        prometheus,
        is_counter: false,
        lasts: false,
        title: None,
        column: None,
        is_rate: false,
        sorts: false,
        on_page: false,
        applies: Applies::Always,
        study: None,
        of: |_| None,
    }
}

/// A figure that only grows while a run goes on.
pub(super) const fn counter<R>(prometheus: &'static str, unit: Unit) -> Figure<R> {
    let mut figure = gauge(prometheus, unit).lasting();
    figure.is_counter = true;
    figure
}

impl<R> Figure<R> {
    pub(super) const fn lasting(mut self) -> Self {
        self.lasts = true;
        self
    }

    pub(super) const fn titled(mut self, title: &'static str) -> Self {
        self.title = Some(title);
        self
    }

    pub(super) const fn column(mut self, title: &'static str, long: &'static str, rank: u8) -> Self {
        self.column = Some(FigureColumn { title, long, rank });
        self
    }

    pub(super) const fn rate(mut self) -> Self {
        self.is_rate = true;
        self
    }

    pub(super) const fn sorts(mut self) -> Self {
        self.sorts = true;
        self
    }

    pub(super) const fn on_page(mut self) -> Self {
        self.on_page = true;
        self
    }

    pub(super) const fn only(mut self, applies: Applies) -> Self {
        self.applies = applies;
        self
    }

    pub(super) const fn studied(mut self, title: &'static str) -> Self {
        self.study = Some(title);
        self
    }
}

/// A type of figures.
pub(super) trait Measure: Copy {
    /// The value as a number; none if it is not known.
    fn value(self) -> Option<f64>;

    /// The value that counts for a node that has left its run, from its last record in the run and its newest.
    fn kept(before: Self, newest: Self) -> Self;
}

impl Measure for u64 {
    fn value(self) -> Option<f64> {
        Some(self as f64)
    }

    fn kept(before: Self, newest: Self) -> Self {
        before.max(newest)
    }
}

impl Measure for f64 {
    fn value(self) -> Option<f64> {
        Some(self)
    }

    fn kept(before: Self, newest: Self) -> Self {
        before.max(newest)
    }
}

impl Measure for Option<f64> {
    fn value(self) -> Option<f64> {
        self
    }

    fn kept(before: Self, newest: Self) -> Self {
        newest.or(before)
    }
}
