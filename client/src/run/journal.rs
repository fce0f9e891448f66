//! Journal of a run in its folder: `metrics.jsonl` has every node's record of every second and every evaluation,
//! `events.jsonl` has the events between them.
//!
//! The run does not depend on the journal: after a failed write a file gets no further lines, and that is reported
//! once.

use std::fs::File;
use std::io::{BufWriter, Write};

use protocol::stats::StatsRecord;
use protocol::stats::measured::Evaluation;
use serde::Serialize;

use super::folder::RunFolder;
use crate::output::notice;
use crate::timeline::Happened;

pub(crate) const METRICS: &str = "metrics.jsonl";
pub(crate) const EVENTS: &str = "events.jsonl";

/// Line of `metrics.jsonl`, the file of a run's records, that holds an evaluation instead of a node's record.
#[derive(Serialize)]
struct Evaluated<'a> {
    time: f64,
    event: &'static str,
    #[serde(flatten)]
    evaluation: &'a Evaluation,
}

/// Journal of one run: a file of its nodes' records and evaluations, and a file of its events.
pub(crate) struct Journal {
    metrics: JournalFile,
    events: JournalFile,
    /// Time of the newest evaluation in the journal, in seconds of the run.
    evaluated: Option<f64>,
}

impl Journal {
    /// Opens the journal in a run's folder: its files of records and events, to which it appends.
    pub(crate) fn open(folder: &RunFolder) -> Self {
        let lines = |name: &'static str| JournalFile {
            name,
            file: folder
                .append(name)
                .map(BufWriter::new)
                .map_err(|error| said(name, &error))
                .ok(),
        };
        Self {
            metrics: lines(METRICS),
            events: lines(EVENTS),
            evaluated: None,
        }
    }

    /// Returns true if an evaluation is newer than those in the run's journal.
    pub(crate) fn is_new(&self, evaluation: &Evaluation) -> bool {
        self.evaluated.is_none_or(|newest| evaluation.seconds > newest)
    }

    /// Appends the nodes' records of the run, and the evaluations that they carry, to the journal.
    pub(crate) fn take(&mut self, records: &[StatsRecord]) {
        for record in records {
            self.metrics.add(record);
            // Every record repeats the newest evaluation, whichever node has made it.
            for evaluation in record.told_evaluations() {
                if !self.is_new(evaluation) {
                    continue;
                }
                self.add_evaluation(record.time, evaluation);
            }
        }
    }

    /// Appends an evaluation to the journal: one from a record, or that of the run's final weights, which no record
    /// carries.
    pub(crate) fn add_evaluation(&mut self, time: f64, evaluation: &Evaluation) {
        self.evaluated = Some(evaluation.seconds);
        self.metrics.add(&Evaluated {
            time,
            event: "evaluation",
            evaluation,
        });
        self.metrics.flush();
    }

    /// Appends an event to the journal, and flushes its files of records and events so that both are complete up to it.
    pub(crate) fn note(&mut self, happened: &Happened) {
        self.events.add(happened);
        self.events.flush();
        self.metrics.flush();
    }
}

/// File of the journal, made of lines, which is closed after the first failed write.
struct JournalFile {
    name: &'static str,
    file: Option<BufWriter<File>>,
}

impl JournalFile {
    fn add(&mut self, what: &impl Serialize) {
        let line = serde_json::to_string(what);
        self.attempt(|file| writeln!(file, "{}", line?));
    }

    fn flush(&mut self) {
        self.attempt(BufWriter::flush);
    }

    fn attempt(&mut self, act: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) {
        if let Some(file) = &mut self.file
            && let Err(error) = act(file)
        {
            said(self.name, &error);
            // The buffer is dropped without another attempt to write its content.
            let _ = self.file.take().map(BufWriter::into_parts);
        }
    }
}

fn said(name: &str, error: &std::io::Error) {
    notice::say(&format!(
        "cannot write to {name} ({error}); the run continues without recording to it"
    ));
}

#[cfg(test)]
mod tests {
    use protocol::ids::RunId;
    use protocol::reasons::waiting::WaitingFor;

    use super::*;
    use crate::timeline::TimelineEntry;

    #[test]
    fn files_hold_what_happened_and_a_full_disk_ends_only_the_journal() {
        let among = tempfile::tempdir().unwrap();
        let folder = RunFolder::make(among.path(), RunId(7)).unwrap();
        let mut journal = Journal::open(&folder);
        let record = StatsRecord {
            node: "a".into(),
            time: 2e9,
            evaluation: Some(Evaluation::default()),
            ..StatsRecord::default()
        };
        journal.take(&[record.clone(), record]);
        let happened = |what| Happened {
            number: 1,
            time: 2e9,
            what,
        };
        let reasons = vec![WaitingFor::OwnLastBatches];
        journal.note(&happened(TimelineEntry::Waiting { reasons }));
        journal.note(&happened(TimelineEntry::StopAsked));
        let lines = |name: &str| -> Vec<serde_json::Value> {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        assert_eq!(lines(METRICS).len(), 3, "an evaluation has a line of its own, once");
        assert!(lines(METRICS).iter().all(|line| line["time"] == 2e9));
        let events: Vec<String> = lines(EVENTS).iter().map(|line| line["event"].to_string()).collect();
        assert_eq!(events, [r#""waiting""#, r#""stop_asked""#]);

        if let Ok(full) = File::create("/dev/full") {
            journal.events.file = Some(BufWriter::new(full));
            journal.note(&happened(TimelineEntry::StopAsked));
            assert!(journal.events.file.is_none());
            journal.note(&happened(TimelineEntry::StopAsked));
        }
    }
}
