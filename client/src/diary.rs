//! What happens in a run, kept in its folder: `metrics.jsonl` has every node's record of every second and every
//! evaluation, `events.jsonl` what is not of every second.
//!
//! The run does not depend on it: what can no longer be written is left out, which is said once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use protocol::ids::RunId;
use protocol::measured::Evaluation;
use protocol::stats::StatsRecord;
use serde::Serialize;

use crate::notice;
use crate::run_folder::RunFolder;

const METRICS: &str = "metrics.jsonl";
const EVENTS: &str = "events.jsonl";
/// A node that has not been heard of for so long, while others are, is silent.
const SILENT: Duration = Duration::from_secs(5);

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Happening {
    /// The run is followed from here on.
    Followed { run: String },
    /// A node is heard of for the first time.
    Joined { node: String },
    /// A node is not heard of any more.
    Silent { node: String },
    /// One that was silent is heard of again.
    Back { node: String },
    /// What the run waits for has changed.
    Waiting {
        #[serde(rename = "for")]
        reasons: Vec<String>,
    },
    /// This client was asked to end the run.
    StopAsked,
    /// It is over.
    Finished { reason: &'static str },
    /// It is over, and nothing came of it here.
    Failed { reason: String },
}

/// A line of either file: when, and what.
#[derive(Serialize)]
struct Entry<'a, W> {
    /// Seconds since 1970.
    time: f64,
    #[serde(flatten)]
    what: &'a W,
}

/// A line of metrics that is no node's record.
#[derive(Serialize)]
struct Evaluated<'a> {
    event: &'static str,
    #[serde(flatten)]
    evaluation: &'a Evaluation,
}

/// A diary of one run.
pub(crate) struct Diary {
    metrics: Lines,
    events: Lines,
    begun: Instant,
    watch: Watch,
}

impl Diary {
    /// Opens a diary in a run's folder.
    pub(crate) fn open(folder: &RunFolder, run: RunId) -> Self {
        let lines = |name: &'static str| Lines {
            name,
            file: folder
                .create(name)
                .map(BufWriter::new)
                .map_err(|error| said(name, &error))
                .ok(),
        };
        let mut diary = Self {
            metrics: lines(METRICS),
            events: lines(EVENTS),
            begun: Instant::now(),
            watch: Watch::default(),
        };
        diary.note(&Happening::Followed { run: run.to_string() });
        diary
    }

    /// Takes in what nodes have told of this run.
    pub(crate) fn take(&mut self, run: RunId, records: &[StatsRecord]) {
        let run = run.to_string();
        for record in records.iter().filter(|record| record.run == run) {
            self.metrics.add(record);
            if let Some(evaluation) = record.evaluation.filter(|new| self.watch.is_new(new)) {
                self.metrics.add(&Evaluated {
                    event: "evaluation",
                    evaluation: &evaluation,
                });
            }
            if let Some(happened) = self.watch.heard(&record.node, self.begun.elapsed()) {
                self.note(&happened);
            }
        }
        for happened in self.watch.silent(self.begun.elapsed()) {
            self.note(&happened);
        }
    }

    /// Notes what happened. Both files are then complete as far as they go.
    pub(crate) fn note(&mut self, what: &Happening) {
        self.events.add(what);
        self.events.flush();
        self.metrics.flush();
    }
}

/// A file of lines that may end early.
struct Lines {
    name: &'static str,
    file: Option<BufWriter<File>>,
}

impl Lines {
    fn add(&mut self, what: &impl Serialize) {
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        let line = serde_json::to_string(&Entry { time, what });
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
            // What it still holds would be written once more, in vain.
            let _ = self.file.take().map(BufWriter::into_parts);
        }
    }
}

fn said(name: &str, error: &std::io::Error) {
    notice::say(&format!(
        "{name} is not kept any more, since it could not be written ({error}); the run goes on"
    ));
}

/// What has changed since the last record.
#[derive(Debug, Default)]
struct Watch {
    nodes: BTreeMap<String, Heard>,
    evaluation: Option<Evaluation>,
}

#[derive(Debug)]
struct Heard {
    last: Duration,
    silent: bool,
}

impl Watch {
    fn heard(&mut self, node: &str, now: Duration) -> Option<Happening> {
        let known = self.nodes.insert(
            node.into(),
            Heard {
                last: now,
                silent: false,
            },
        );
        let node = node.to_owned();
        match known {
            None => Some(Happening::Joined { node }),
            Some(known) if known.silent => Some(Happening::Back { node }),
            Some(_) => None,
        }
    }

    /// Those that have fallen silent, while others are heard of.
    fn silent(&mut self, now: Duration) -> Vec<Happening> {
        let mut fallen = Vec::new();
        let newest = self.nodes.values().map(|heard| heard.last).max().unwrap_or_default();
        if now.saturating_sub(newest) > SILENT {
            return fallen;
        }
        for (node, heard) in &mut self.nodes {
            if !heard.silent && now.saturating_sub(heard.last) > SILENT {
                heard.silent = true;
                fallen.push(Happening::Silent { node: node.clone() });
            }
        }
        fallen
    }

    fn is_new(&mut self, evaluation: &Evaluation) -> bool {
        self.evaluation.replace(*evaluation) != Some(*evaluation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn silence_is_noted_once_and_only_while_others_speak() {
        let node = || String::from("a");
        let mut watch = Watch::default();
        assert_eq!(watch.heard("a", seconds(0)), Some(Happening::Joined { node: node() }));
        assert_eq!(
            watch.heard("b", seconds(0)),
            Some(Happening::Joined { node: "b".into() })
        );
        assert_eq!(watch.heard("b", seconds(7)), None);
        assert_eq!(watch.silent(seconds(8)), [Happening::Silent { node: node() }]);
        assert_eq!(watch.silent(seconds(9)), []);
        assert_eq!(watch.heard("a", seconds(10)), Some(Happening::Back { node: node() }));
        // Nobody is heard of: it is this client that hears nothing.
        assert_eq!(watch.silent(seconds(60)), []);
    }

    #[test]
    fn files_hold_what_happened_and_a_full_disk_ends_only_the_diary() {
        let among = tempfile::tempdir().unwrap();
        let folder = RunFolder::make(among.path(), RunId(7)).unwrap();
        let mut diary = Diary::open(&folder, RunId(7));
        let record = StatsRecord {
            node: "a".into(),
            run: RunId(7).to_string(),
            ..StatsRecord::default()
        };
        let foreign = StatsRecord {
            run: RunId(8).to_string(),
            ..record.clone()
        };
        diary.take(RunId(7), &[record.clone(), foreign, record]);
        let reasons = vec!["it has not settled".into()];
        diary.note(&Happening::Waiting { reasons });
        diary.note(&Happening::Finished { reason: "trained" });
        let lines = |name: &str| -> Vec<serde_json::Value> {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        assert_eq!(lines(METRICS).len(), 2);
        assert!(lines(METRICS)[0]["time"].as_f64().unwrap() > 1e9);
        let events: Vec<String> = lines(EVENTS).iter().map(|line| line["event"].to_string()).collect();
        assert_eq!(
            events,
            [r#""followed""#, r#""joined""#, r#""waiting""#, r#""finished""#]
        );

        if let Ok(full) = File::create("/dev/full") {
            diary.events.file = Some(BufWriter::new(full));
            diary.note(&Happening::StopAsked);
            assert!(diary.events.file.is_none());
            diary.note(&Happening::StopAsked);
        }
    }
}
