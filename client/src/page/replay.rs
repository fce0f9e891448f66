//! A run that is over, as it was at any second: what its folder holds, told again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use protocol::job::JobDraft;
use protocol::measured::{Evaluation, number_or_null};
use protocol::stats::StatsRecord;
use serde::Deserialize;

use crate::journal::{EVENTS, METRICS};
use crate::run_folder::{JOB, RESULT};
use crate::timeline::{End, Facts, Timeline, TimelineEntry};

/// Records that are held; of a longer run they are thinned out evenly.
const RECORDS_MAX: usize = 40_000;

/// A run in its folder.
pub(crate) struct Replay {
    facts: Facts,
    /// By time.
    records: Vec<StatsRecord>,
    /// Whose they are: a node's folder holds its own.
    tellers: BTreeSet<String>,
    /// Seconds between two of one node.
    every: f64,
    notes: Vec<Note>,
    /// The evaluations of its result.
    evaluations: Vec<Evaluation>,
    told: ReplayState,
}

/// How far it was told, and how it was then.
struct ReplayState {
    timeline: Timeline,
    at: f64,
    records: usize,
    notes: usize,
}

impl ReplayState {
    fn of_every(seconds: f64) -> Self {
        Self {
            timeline: Timeline::of_every(seconds),
            at: 0.0,
            records: 0,
            notes: 0,
        }
    }
}

/// A line of the events' file.
#[derive(Clone, Deserialize)]
struct Note {
    time: f64,
    #[serde(flatten)]
    what: TimelineEntry,
}

/// What is read of a result.
#[derive(Deserialize)]
struct Outcome {
    accuracy: f64,
    #[serde(default)]
    mae: Option<f64>,
    #[serde(deserialize_with = "number_or_null")]
    loss: f64,
    epochs: f64,
    samples: u64,
    seconds: f64,
    replicas_agree: bool,
    nodes: usize,
    missing: Vec<String>,
    digest: String,
    reason: String,
    model: String,
    #[serde(default)]
    evaluations: Vec<Evaluation>,
}

impl Replay {
    /// Reads a run's folder. Says what is wrong with it.
    pub(crate) fn open(folder: &Path) -> Result<Self, String> {
        let text = |name: &str| {
            std::fs::read_to_string(folder.join(name)).map_err(|error| format!("{name} could not be read: {error}"))
        };
        let draft = JobDraft::from_toml(&text(JOB)?).map_err(|error| format!("{JOB}: {}", error.message()))?;
        let job = draft.resolve().map_err(|error| format!("{JOB}: {error}"))?;
        // A run that failed, or whose client died, has none.
        let result: Option<Outcome> = text(RESULT).ok().and_then(|text| serde_json::from_str(&text).ok());
        let (records, every) = records(folder).map_err(|error| format!("{METRICS} could not be read: {error}"))?;
        let tellers = records.iter().map(|record| record.node.clone()).collect();
        let notes: Vec<Note> = text(EVENTS)?
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let Some(first) = records.first() else {
            return Err(format!("{METRICS} holds no records"));
        };
        let failed = notes.iter().find_map(|note| match &note.what {
            TimelineEntry::Failed { reason } => Some(End::Failed { reason: reason.clone() }),
            _ => None,
        });
        let trained = |result: &Outcome| (result.samples as f64 / result.epochs).round() as u64;
        let train = result.as_ref().filter(|result| result.epochs > 0.0).map_or(0, trained);
        let evaluations = result.as_ref().map(|result| result.evaluations.clone());
        let facts = Facts {
            end: result.map(Outcome::end).or(failed),
            ..Facts::of_job(first.run.clone(), &job, train)
        };
        Ok(Self {
            facts,
            records,
            tellers,
            every: every as f64,
            notes,
            evaluations: evaluations.unwrap_or_default(),
            told: ReplayState::of_every(every as f64),
        })
    }

    /// When it began, in seconds since 1970, and how many seconds it took.
    pub(super) fn span(&self) -> (f64, f64) {
        let begin = self.records.first().map_or(0.0, |record| record.time);
        let last_note = self.notes.last().map_or(begin, |note| note.time);
        let last_record = self.records.last().map_or(begin, |record| record.time);
        (begin, last_note.max(last_record) - begin)
    }

    /// The run as it was so many seconds after its begin.
    pub(super) fn at(&mut self, at: f64) -> &Timeline {
        let (begin, length) = self.span();
        // What lies ahead is told from here on; for what lies behind it begins again.
        if at < self.told.at {
            self.told = ReplayState::of_every(self.every);
        }
        let told = &mut self.told;
        told.at = at;
        let until = begin + at;
        loop {
            let record = self.records.get(told.records).filter(|record| record.time <= until);
            let note = self.notes.get(told.notes).filter(|note| note.time <= until);
            match (record, note) {
                (Some(record), note) if note.is_none_or(|note| record.time <= note.time) => {
                    told.timeline.take(std::slice::from_ref(record));
                    told.records += 1;
                }
                (_, Some(note)) => {
                    if !note.what.is_told_by(&self.tellers) {
                        told.timeline.note(note.time, note.what.clone());
                    }
                    told.notes += 1;
                }
                _ => break,
            }
        }
        let facts = self.facts_then(at >= length);
        self.told.timeline.take_facts(facts, begin + at.min(length));
        if at >= length {
            self.told.timeline.close(&self.evaluations);
        }
        &self.told.timeline
    }

    /// What was known of the run then.
    fn facts_then(&self, over: bool) -> Facts {
        let end = self.facts.end.clone().filter(|_| over);
        Facts {
            phase: match end {
                Some(End::Finished { .. }) => "finished",
                Some(End::Failed { .. }) => "failed",
                None => "training",
            },
            end,
            ..self.facts.clone()
        }
    }
}

impl Outcome {
    fn end(self) -> End {
        End::Finished {
            accuracy: self.accuracy,
            mae: self.mae,
            loss: self.loss,
            samples: self.samples,
            seconds: self.seconds,
            agree: self.replicas_agree,
            nodes: self.nodes,
            missing: self.missing,
            digest: self.digest,
            reason: self.reason,
            model: self.model,
        }
    }
}

/// The records of a run, as many as are held. A client that was killed has left half a line.
fn records(folder: &Path) -> std::io::Result<(Vec<StatsRecord>, usize)> {
    let open = || File::open(folder.join(METRICS)).map(BufReader::new);
    let lines = open()?.lines().count();
    let every = lines.div_ceil(RECORDS_MAX).max(1);
    let mut counts = BTreeMap::new();
    let mut records: Vec<StatsRecord> = Vec::new();
    let mut evaluated = 0.0;
    for line in open()?.lines() {
        let Ok(record) = serde_json::from_str::<StatsRecord>(&line?) else {
            continue;
        };
        // Lines of evaluations are no node's; records have them as well.
        if record.node.is_empty() {
            continue;
        }
        let count: &mut usize = counts.entry(record.node.clone()).or_default();
        let measured = record.told_evaluations().map(|one| one.seconds).fold(0.0, f64::max);
        // What is of one second only is never left out.
        if count.is_multiple_of(every) || !record.said.is_empty() || measured > evaluated {
            records.push(record);
        }
        evaluated = measured.max(evaluated);
        *count += 1;
    }
    records.sort_by(|one, other| one.time.total_cmp(&other.time));
    Ok((records, every))
}
