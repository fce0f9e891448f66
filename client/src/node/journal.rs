//! A node's journal of runs, in the folders where it saves their models: the job, the node's own records, events and
//! the result. When a run begins, the folders of the oldest runs are removed.

use std::path::{Path, PathBuf};

use communicator::log_context::NEWS;
use communicator::node::Inquiry;
use protocol::stats::StatsRecord;
use protocol::wire::control::{Phase, Reply, Request, RunStatus};

use crate::clock;
use crate::run::ending;
use crate::run::folder::{RunFolder, run_named};
use crate::run::journal::Journal;
use crate::timeline::{Facts, Timeline};
use crate::views::page;

/// Seconds from the start of a run for which its journal keeps every record, one a second; later it keeps one every
/// `COARSE_EVERY` seconds.
const FINE_SECONDS: f64 = 3600.0;
const COARSE_EVERY: f64 = 10.0;

/// Writes the journal of each run, two files of records and events in the run's folder, until the node stops.
pub(crate) async fn keep(node: Inquiry, name: String, dir: PathBuf, runs_max: usize) {
    let mut current: Option<JournalledRun> = None;
    let mut after = 0;
    while let Some(Reply::Stats { last, records }) = node.ask(Request::Stats { after }).await {
        after = last;
        let Some(Reply::Status(status)) = node.ask(Request::Status).await else {
            return;
        };
        let Some(status) = status.filter(|status| has_begun(status)) else {
            continue;
        };
        let run = status.run.to_string();
        if current.as_ref().is_none_or(|kept| kept.run != run) {
            tidy(&dir, runs_max, &run);
            current = JournalledRun::begin(&dir, &run);
        }
        let Some(kept) = current.as_mut().filter(|kept| !kept.over) else {
            continue;
        };
        kept.take_all(&records, &name);
        // Records from before the end may have come after the last answer, and at the end there always is one.
        if status.outcome.is_some()
            && let Some(Reply::Stats { last, records }) = node.ask(Request::Stats { after }).await
        {
            after = last;
            kept.take_all(&records, &name);
        }
        kept.look(&status);
    }
}

/// Returns true if training has begun or the run ended with a model: only then is the run's journal written. Very short
/// runs end before any node has reported their training.
fn has_begun(status: &RunStatus) -> bool {
    match &status.outcome {
        Some(outcome) => outcome.is_ok(),
        None => status.phase > Phase::Preparing,
    }
}

/// The run whose journal this node writes.
struct JournalledRun {
    run: String,
    folder: RunFolder,
    timeline: Timeline,
    journal: Journal,
    /// Time of the last record that the run's journal kept, in seconds of the run.
    recorded: f64,
    has_job: bool,
    over: bool,
}

impl JournalledRun {
    fn begin(dir: &Path, run: &str) -> Option<Self> {
        // The run does not depend on the journal: a full disk is reported where the model is saved.
        let folder = RunFolder::at(dir.join(run)).ok()?;
        Some(Self {
            run: run.into(),
            journal: Journal::open(&folder),
            folder,
            timeline: Timeline::default(),
            recorded: 0.0,
            has_job: false,
            over: false,
        })
    }

    /// Takes in the records of this run from all nodes, and keeps those of this node, which is called `name`, in the
    /// journal.
    fn take_all(&mut self, records: &[StatsRecord], name: &str) {
        for record in records {
            if record.run == self.run {
                self.take(record, record.node == name);
            }
        }
    }

    fn take(&mut self, record: &StatsRecord, own: bool) {
        let happened = self.timeline.take(std::slice::from_ref(record));
        for happened in &happened {
            self.journal.note(happened);
        }
        let due = record.seconds < FINE_SECONDS || record.seconds >= self.recorded + COARSE_EVERY;
        let evaluated = record.told_evaluations().any(|new| self.journal.is_new(new));
        if own && (due || evaluated) {
            self.recorded = record.seconds;
            self.journal.take(std::slice::from_ref(record));
        }
    }

    fn look(&mut self, status: &RunStatus) {
        if status.run.to_string() != self.run {
            return;
        }
        if !self.has_job {
            self.has_job = self.folder.keep_job(&status.job).is_ok();
        }
        for happened in self.timeline.take_facts(Facts::of(status), clock::now()) {
            self.journal.note(&happened);
        }
        self.over = status.outcome.is_some();
        if let Some(Ok(result)) = &status.outcome {
            let finished = ending::finished(status, result, result.model.display().to_string());
            if let Some(last) = finished.evaluations.last() {
                self.journal.add_evaluation(clock::now(), last);
            }
            if self.folder.keep_result(&finished).is_ok() {
                self.timeline.close(&finished.evaluations);
                page::report::keep_followed(&self.timeline, self.folder.path());
            }
        }
    }
}

/// Removes the folders of the oldest runs from a node's folder, so that at most `runs_max` folders of runs remain. One
/// of these is the folder of the new run, whose name is `begins`.
fn tidy(dir: &Path, runs_max: usize, begins: &str) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut runs: Vec<(std::time::SystemTime, PathBuf)> = entries
        .map(|entry| entry.path())
        .filter(|path| run_named(path).is_some() && !path.is_symlink() && !path.ends_with(begins))
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .collect();
    runs.sort();
    let many = (runs.len() + 1).saturating_sub(runs_max);
    for (_, path) in runs.into_iter().take(many) {
        if std::fs::remove_dir_all(&path).is_ok() {
            tracing::info!(
                target: NEWS, event = "run_folder_removed", path = %path.display(),
                "removed the folder of an old run because of --keep-runs"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::ids::RunId;

    use super::*;

    #[test]
    fn the_oldest_runs_go_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for age in 0..5 {
            let run = path(&RunId(age).to_string());
            std::fs::create_dir(&run).unwrap();
            let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 - age);
            std::fs::File::open(&run).unwrap().set_modified(time).unwrap();
        }
        std::fs::create_dir(path("mine")).unwrap();
        std::fs::write(path("page-token"), "x").unwrap();
        tidy(dir.path(), 3, &RunId(4).to_string());
        let mut left: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        // Besides the run that begins, which is the oldest, the two newest stay.
        let runs = [0, 1, 4].map(|run| RunId(run).to_string());
        assert_eq!(left[..3], runs);
        assert_eq!(left[3..], ["mine", "page-token"]);
    }
}
