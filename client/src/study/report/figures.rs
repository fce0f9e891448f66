//! The figures that a report shows of every run, and their formats: the entries of the
//! [table](protocol::stats::RUN_FIGURES) that have a title for studies, and some that only reports compute.

use protocol::stats::{Figure, RUN_FIGURES, RunFigures, Unit};

use super::super::row::Measured;
use crate::output::quality_metric::QualityMetric;
use crate::output::quantity::{accuracy, bytes, count, seconds, share};

/// One figure of a run in a report, such as the accuracy or the seconds taken.
#[derive(Clone, Copy)]
pub(crate) struct StudyFigure {
    pub(crate) name: &'static str,
    /// Meaning of a report's figure in one sentence, for the glossary and tooltips.
    pub(crate) about: &'static str,
    source: Source,
    pub(crate) text: fn(f64) -> String,
}

/// Source of a figure's value: a function of the run, or the shared table of figures.
#[derive(Clone, Copy)]
enum Source {
    /// The value of a report's figure is computed from the run and the experiment's target accuracy.
    Own(fn(&Measured, Option<f64>) -> Option<f64>),
    Table(&'static Figure<RunFigures>),
}

impl StudyFigure {
    const fn own(
        name: &'static str,
        about: &'static str,
        of: fn(&Measured, Option<f64>) -> Option<f64>,
        text: fn(f64) -> String,
    ) -> Self {
        Self {
            name,
            about,
            source: Source::Own(of),
            text,
        }
    }

    fn of_table(figure: &'static Figure<RunFigures>) -> Option<Self> {
        Some(Self {
            name: figure.study?,
            about: figure.meaning,
            source: Source::Table(figure),
            text: match figure.unit {
                Unit::Share => share,
                Unit::Seconds => seconds,
                Unit::Bytes => bytes,
                _ => |figure| format!("{figure:.4}"),
            },
        })
    }

    /// Returns the value of this figure for a run, if it is known; `target` is the experiment's target accuracy.
    pub(crate) fn of(&self, run: &Measured, target: Option<f64>) -> Option<f64> {
        match self.source {
            Source::Own(of) => of(run, target),
            // A system that does not report a figure of processes leaves it 0, which is not a measurement.
            Source::Table(figure) => {
                (figure.of)(&run.figures).filter(|value| *value > 0.0 || figure.unit == Unit::Share)
            }
        }
    }
}

/// Returns all figures that a report shows of a run, in the order of tables: the quality of models, then the cost of
/// runs.
pub(crate) fn figures(metric: QualityMetric) -> impl Iterator<Item = StudyFigure> {
    std::iter::once(how_good(metric)).chain(taken())
}

/// Returns the figure of a report for the quality of models: accuracy, R² or loss.
pub(crate) fn how_good(metric: QualityMetric) -> StudyFigure {
    match metric {
        QualityMetric::Accuracy => ACCURACY,
        QualityMetric::R2 => R2,
        QualityMetric::Loss => LOSS,
    }
}

/// Returns the figures of a report for the cost of runs: time, speed, traffic and resources.
pub(crate) fn taken() -> impl Iterator<Item = StudyFigure> {
    let table = RUN_FIGURES.iter().filter_map(StudyFigure::of_table);
    [SECONDS, SPEED, TO_TARGET].into_iter().chain(table).chain([DISK])
}

const ACCURACY: StudyFigure = StudyFigure::own(
    "accuracy",
    "Accuracy of the saved weights on the test samples",
    |run, _| run.accuracy,
    accuracy,
);
const R2: StudyFigure = StudyFigure::own(
    "R²",
    "Fraction of the variance of the predicted numbers that the saved weights explain on the test samples",
    |run, _| run.accuracy,
    |figure| QualityMetric::R2.text(figure),
);
const LOSS: StudyFigure = StudyFigure::own(
    "eval loss",
    "Loss of the saved weights on the test samples",
    |run, _| run.loss,
    |figure| QualityMetric::Loss.text(figure),
);
pub(crate) const SECONDS: StudyFigure = StudyFigure::own(
    "time",
    "Time from the first step until the last batch was applied",
    |run, _| Some(run.seconds),
    seconds,
);
pub(crate) const SPEED: StudyFigure = StudyFigure::own(
    "samples/s",
    "Samples trained by all nodes, divided by the time",
    |run, _| Some(run.samples_per_second),
    count,
);
const TO_TARGET: StudyFigure = StudyFigure::own(
    "time to target",
    "Time until an evaluation first reached the experiment's target",
    |run, target| run.seconds_to(target?),
    seconds,
);
const DISK: StudyFigure = StudyFigure::own(
    "disk",
    "Bytes that all processes wrote to and read from disks while the run trained",
    |run, _| Some((run.figures.disk_write_bytes + run.figures.disk_read_bytes) as f64),
    bytes,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_no_figure() {
        let run = Measured::default();
        let found = |name: &str| {
            let figure = taken().find(|figure| figure.name == name).unwrap();
            figure.of(&run, Some(0.5))
        };
        assert_eq!(
            (found("CPU time"), found("time to target"), found("disk")),
            (None, None, Some(0.0))
        );
        assert_eq!((found("waited"), found("sent")), (Some(0.0), None));
    }
}
