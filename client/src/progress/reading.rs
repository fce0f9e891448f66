//! Opens a dataset and reports the progress of reading if that takes long.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use protocol::job::data::DataSpec;
use worker::dataset::{Dataset, DatasetError, Progress};

use super::{ERASE, write};
use crate::sync::lock;

/// Time that reading a dataset may take before the first progress line is printed.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between updates of the progress line on a terminal; elsewhere lines are printed every `WRITTEN_EVERY`.
const DRAWN_EVERY: Duration = Duration::from_millis(200);
const WRITTEN_EVERY: Duration = Duration::from_secs(10);

/// Opens the dataset to train on. If that takes longer than two seconds, a progress line is shown on standard error.
pub(crate) fn open(spec: &DataSpec, seed: u64, data_root: Option<&Path>) -> Result<Dataset, DatasetError> {
    let line = ProgressLine {
        drawn: std::io::stderr().is_terminal(),
        next: Mutex::new(Instant::now() + PATIENCE),
    };
    let opened = Dataset::open_watched(spec, seed, data_root, &|progress| line.show(progress));
    line.erase();
    opened
}

/// Line on standard error that shows how much of the data is read.
struct ProgressLine {
    /// True on a terminal, where each update of the progress line replaces the last one.
    drawn: bool,
    /// Time from which the progress line may be updated again.
    next: Mutex<Instant>,
}

impl ProgressLine {
    fn show(&self, progress: Progress) {
        let now = Instant::now();
        let mut next = lock(&self.next);
        if now < *next {
            return;
        }
        *next = now + if self.drawn { DRAWN_EVERY } else { WRITTEN_EVERY };
        let text = sentence(progress);
        if self.drawn {
            write(&format!("\r{text}\x1b[K"));
        } else {
            write(&format!("{text}\n"));
        }
    }

    fn erase(&self) {
        if self.drawn {
            write(ERASE);
        }
    }
}

fn sentence(progress: Progress) -> String {
    let Progress { done, total, unit } = progress;
    let percent = 100 * done / total.max(1);
    match unit {
        "bytes" => {
            let gigabytes = |bytes: u64| bytes as f64 / 1e9;
            format!(
                "reading the data: {percent} %, {:.1} of {:.1} GB",
                gigabytes(done),
                gigabytes(total)
            )
        }
        unit => format!("reading the data: {percent} %, {done} of {total} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_in_words() {
        let told = |unit| {
            sentence(Progress {
                done: 2_500_000_000,
                total: 10_000_000_000,
                unit,
            })
        };
        assert_eq!(told("bytes"), "reading the data: 25 %, 2.5 of 10.0 GB");
        assert_eq!(
            told("images"),
            "reading the data: 25 %, 2500000000 of 10000000000 images"
        );
    }
}
