//! The figures that a report has of every run, and how they are written.

use super::super::row::Measured;
use crate::quality_metric::QualityMetric;
use crate::quantity::{accuracy, bytes, count, seconds, share};

/// One figure.
#[derive(Clone, Copy)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    /// What it means, in a sentence for those who ask.
    pub(crate) about: &'static str,
    /// Its value; the target is the experiment's.
    pub(crate) of: fn(&Measured, Option<f64>) -> Option<f64>,
    pub(crate) text: fn(f64) -> String,
}

/// All of them, in the order of tables: how good models are, and what they took.
pub(crate) fn figures(metric: QualityMetric) -> impl Iterator<Item = &'static Figure> {
    std::iter::once(how_good(metric)).chain(TAKEN)
}

/// How good models are.
pub(crate) fn how_good(metric: QualityMetric) -> &'static Figure {
    match metric {
        QualityMetric::Accuracy => &ACCURACY,
        QualityMetric::R2 => &R2,
    }
}

/// What runs took.
pub(crate) const TAKEN: &[Figure] = &[
    SECONDS,
    SPEED,
    Figure {
        name: "time to target",
        about: "time until an evaluation first reached the experiment's target",
        of: |run, target| run.seconds_to(target?),
        text: seconds,
    },
    Figure {
        name: "waited",
        about: "fraction of workers' time spent waiting for other workers' rounds",
        of: |run, _| Some(run.waited_share),
        text: share,
    },
    Figure {
        name: "CPU time",
        about: "processor time of all nodes' and workers' processes while the run trained",
        of: |run, _| known(run.cpu_seconds),
        text: seconds,
    },
    Figure {
        name: "memory",
        about: "peak memory of the process that used most",
        of: |run, _| known(run.memory_peak_bytes as f64),
        text: bytes,
    },
    Figure {
        name: "sent",
        about: "bytes sent by the sockets of all nodes, including encryption, control messages and handshakes",
        of: |run, _| known(run.wire_sent as f64),
        text: bytes,
    },
    Figure {
        name: "disk",
        about: "bytes that all processes wrote to and read from disks while the run trained",
        of: |run, _| Some((run.disk_write_bytes + run.disk_read_bytes) as f64),
        text: bytes,
    },
];

const ACCURACY: Figure = Figure {
    name: "accuracy",
    about: "accuracy of the saved weights on the test samples",
    of: |run, _| Some(run.accuracy),
    text: accuracy,
};
const R2: Figure = Figure {
    name: "R²",
    about: "fraction of the variance of the predicted numbers that the saved weights explain on the test samples",
    of: |run, _| Some(run.accuracy),
    text: |figure| QualityMetric::R2.text(figure),
};
pub(crate) const SECONDS: Figure = Figure {
    name: "time",
    about: "time from the first step until the last batch was applied",
    of: |run, _| Some(run.seconds),
    text: seconds,
};
pub(crate) const SPEED: Figure = Figure {
    name: "samples/s",
    about: "samples trained by all nodes, divided by the time",
    of: |run, _| Some(run.samples_per_second),
    text: count,
};

/// What a system does not tell is read as nothing, and is no figure.
fn known(figure: f64) -> Option<f64> {
    (figure > 0.0).then_some(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_no_figure() {
        let run = Measured::default();
        let found = |name: &str| {
            let figure = TAKEN.iter().find(|figure| figure.name == name).unwrap();
            (figure.of)(&run, Some(0.5))
        };
        assert_eq!(
            (found("CPU time"), found("time to target"), found("disk")),
            (None, None, Some(0.0))
        );
    }
}
