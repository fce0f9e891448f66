//! The figures that a report has of every run, and how they are written.

use super::super::row::Measured;

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

/// All of them, in the order of tables.
pub(crate) const FIGURES: &[Figure] = &[
    ACCURACY,
    SECONDS,
    SPEED,
    Figure {
        name: "time to target",
        about: "when an evaluation first reached the experiment's target",
        of: |run, target| run.seconds_to(target?),
        text: seconds,
    },
    Figure {
        name: "waited",
        about: "the share of workers' time in which they waited for others' rounds",
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
        about: "the most that any one process has had",
        of: |run, _| known(run.memory_peak_bytes as f64),
        text: bytes,
    },
    Figure {
        name: "sent",
        about: "bytes that left all nodes' sockets, with encryption, control and handshakes",
        of: |run, _| known(run.wire_sent as f64),
        text: bytes,
    },
    Figure {
        name: "disk",
        about: "bytes that all processes wrote to disks and read from them while the run trained",
        of: |run, _| Some((run.disk_write_bytes + run.disk_read_bytes) as f64),
        text: bytes,
    },
];

pub(crate) const ACCURACY: Figure = Figure {
    name: "accuracy",
    about: "on held-out samples, of the saved weights",
    of: |run, _| Some(run.accuracy),
    text: accuracy,
};
pub(crate) const SECONDS: Figure = Figure {
    name: "time",
    about: "first step to last batch applied",
    of: |run, _| Some(run.seconds),
    text: seconds,
};
pub(crate) const SPEED: Figure = Figure {
    name: "samples/s",
    about: "samples trained by all nodes, by that time",
    of: |run, _| Some(run.samples_per_second),
    text: count,
};

/// What a system does not tell is read as nothing, and is no figure.
fn known(figure: f64) -> Option<f64> {
    (figure > 0.0).then_some(figure)
}

pub(crate) fn accuracy(figure: f64) -> String {
    format!("{:.2} %", 100.0 * figure)
}

pub(crate) fn share(figure: f64) -> String {
    format!("{:.0} %", 100.0 * figure)
}

pub(crate) fn seconds(figure: f64) -> String {
    match figure {
        long if long >= 100.0 => format!("{long:.0} s"),
        short if short < 1.0 => format!("{short:.2} s"),
        middle => format!("{middle:.1} s"),
    }
}

/// A number with a thin space between thousands.
pub(crate) fn count(figure: f64) -> String {
    let digits = format!("{:.0}", figure.abs());
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    if figure < 0.0 { format!("-{out}") } else { out }
}

pub(crate) fn bytes(figure: f64) -> String {
    match figure {
        giga if giga >= 1e9 => format!("{:.2} GB", giga / 1e9),
        mega if mega >= 1e6 => format!("{:.1} MB", mega / 1e6),
        kilo if kilo >= 1e3 => format!("{:.1} kB", kilo / 1e3),
        few => format!("{few:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_people_read_them() {
        assert_eq!(accuracy(0.98_65), "98.65 %");
        assert_eq!(count(1_234_567.0), "1\u{202f}234\u{202f}567");
        assert_eq!(count(12.0), "12");
        assert_eq!(bytes(1_350_000.0), "1.4 MB");
        assert_eq!(bytes(12.0), "12 B");
        assert_eq!(
            (seconds(0.5), seconds(5.25), seconds(321.0)),
            ("0.50 s".into(), "5.2 s".into(), "321 s".into())
        );
    }

    #[test]
    fn what_is_not_known_is_no_figure() {
        let run = Measured::default();
        let found = |name: &str| {
            let figure = FIGURES.iter().find(|figure| figure.name == name).unwrap();
            (figure.of)(&run, Some(0.5))
        };
        assert_eq!(
            (found("CPU time"), found("time to target"), found("disk")),
            (None, None, Some(0.0))
        );
    }
}
