//! One figure of the [table](super::figures): its meaning, its unit, and the views that show it.

use serde::Serialize;

/// Unit of a figure. Views choose the number format by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Samples,
    SamplesPerSecond,
    /// Unit of values of the loss function.
    Loss,
    /// Unit of an accuracy, or of R² if the model predicts numbers.
    Quality,
    /// Unit of the numbers that the model predicts.
    Target,
    /// Unit of the size of one weight change.
    WeightChange,
    /// Unit of a share that is far below 1, shown with more digits.
    Density,
    /// Unit of a share from 0 to 1.
    Share,
    Bytes,
    Batches,
    Rounds,
    Seconds,
    /// Unit of a number of busy processor cores.
    Cores,
    /// Unit of a number of busy GPUs.
    Gpus,
    /// Unit of the Euclidean norm of weights, which is not a finite number in a run that diverges.
    Norm,
}

impl Unit {
    /// Returns the unit in words.
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

/// Runs and nodes for which a figure is meaningful. Views omit the figure for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// The figure is meaningful for all runs and nodes.
    Always,
    /// The figure is meaningful for runs of several nodes, because a single node exchanges nothing.
    SeveralNodes,
    /// The figure is meaningful for nodes that train on GPUs.
    Gpus,
    /// The figure is meaningful for runs in which workers wait for each other in rounds.
    Rounds,
    /// The figure is meaningful where its value is known.
    Known,
    /// The figure is meaningful where its value is not zero.
    NonZero,
}

/// The column of a figure in the terminal's table of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FigureColumn {
    /// Title of the column where space is short.
    pub title: &'static str,
    /// Title of the column with the unit, for terminals that are wide enough.
    pub long: &'static str,
    /// Rank of the column: narrow terminals omit the columns with the highest rank first.
    pub rank: u8,
}

/// One figure of a node's record or a run's result, of type `R`: its meaning, its unit, and the views that show it.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the flags are independent, and named where they are set"
)]
pub struct Figure<R> {
    /// Name of the figure's field in records and results.
    pub name: &'static str,
    /// Meaning of the figure, without a full stop.
    pub meaning: &'static str,
    /// Unit of the figure.
    pub unit: Unit,
    /// Name of the figure's metric in Prometheus.
    pub prometheus: &'static str,
    /// True if the figure only grows while a run goes on.
    pub is_counter: bool,
    /// True if the figure's last value stays meaningful after its node has fallen silent, so that views still show it.
    /// Other figures describe the last second only.
    pub lasts: bool,
    /// Title of the figure on the client's web page about runs; none if the page does not show it.
    pub title: Option<&'static str>,
    /// Column of the figure in the terminal; none if the terminal does not show it.
    pub column: Option<FigureColumn>,
    /// True if tables of nodes show the figure's growth per second instead of its value.
    pub is_rate: bool,
    /// True if the terminal can sort nodes by the figure.
    pub sorts: bool,
    /// True if the live page's table of nodes has the figure.
    pub on_page: bool,
    /// Runs and nodes for which the figure is meaningful.
    pub applies: Applies,
    /// Title of the figure in the reports that `tau study` writes; none if these do not show it.
    pub study: Option<&'static str>,
    /// Reads the figure's value from a record or result; none if the value is unknown.
    pub of: fn(&R) -> Option<f64>,
}

/// Returns a figure whose value goes up and down, to be completed with the views that show it.
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

/// Returns a figure whose value only grows while a run goes on, to be completed with the views that show it.
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

/// A type that a figure's value can have.
pub(super) trait Measure: Copy {
    /// Returns the figure's value as a number; none if it is unknown.
    fn value(self) -> Option<f64>;

    /// Returns the figure's value to keep for a node that has left its run, given the values in its last record of the
    /// run and in its newest record.
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
