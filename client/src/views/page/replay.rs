//! Replay of an ended run: its folder's records and events, from which its timeline at any second is built.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;

use protocol::stats::StatsRecord;
use serde::Deserialize;

use super::documents::RunDocuments;
use crate::run::folder::RESULT;
use crate::run::journal::{EVENTS, METRICS};
use crate::timeline::{End, Facts, Timeline, TimelineEntry};

/// Largest number of records of a replayed run in memory; those of a longer run are thinned out evenly.
const RECORDS_MAX: usize = 40_000;

/// An ended run, loaded from its folder to be shown as it was at any second.
pub(crate) struct Replay {
    facts: Facts,
    /// Records of the replayed run in the order of their times.
    records: Vec<StatsRecord>,
    /// Names of the nodes whose records the replayed folder holds; the folder of a node holds only its own.
    tellers: BTreeSet<String>,
    /// Seconds between two of one node's `records`: one, or more if the records of a long run were thinned.
    every: f64,
    notes: Vec<Note>,
    documents: RunDocuments,
    told: ReplayState,
}

/// The moment that the replay of a run has reached, with the timeline up to it.
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

/// One line of `events.jsonl`, the file of a run's events.
#[derive(Clone, Deserialize)]
struct Note {
    time: f64,
    #[serde(flatten)]
    what: TimelineEntry,
}

impl Replay {
    /// Reads a run's folder to replay the run. An error says what is wrong with the folder.
    pub(crate) fn open(folder: &Path) -> Result<Self, String> {
        let documents = RunDocuments::read(folder)?;
        let (records, every) = records(folder).map_err(|error| format!("{METRICS} could not be read: {error}"))?;
        let tellers = records.iter().map(|record| record.node.clone()).collect();
        let notes = notes(folder).map_err(|error| format!("{EVENTS} could not be read: {error}"))?;
        let run = match (records.first(), &documents.result) {
            (Some(first), _) => first.run.clone(),
            (None, Some(result)) => result.run.clone(),
            (None, None) => return Err(format!("{METRICS} holds no records, and there is no {RESULT}")),
        };
        let failed = notes.iter().find_map(|note| match &note.what {
            TimelineEntry::Failed { reason } => Some(End::Failed { reason: reason.clone() }),
            _ => None,
        });
        let facts = Facts {
            end: documents.end().or(failed),
            ..Facts::of_job(run, &documents.job, documents.train())
        };
        Ok(Self {
            facts,
            documents,
            records,
            tellers,
            every: every as f64,
            notes,
            told: ReplayState::of_every(every as f64),
        })
    }

    /// Returns the replayed run's job and result, as its folder holds them.
    pub(super) fn documents(&self) -> &RunDocuments {
        &self.documents
    }

    /// Returns the begin of the run in seconds since 1970, and its length in seconds.
    pub(super) fn span(&self) -> (f64, f64) {
        let first_note = self.notes.first().map_or(0.0, |note| note.time);
        let begin = self.records.first().map_or(first_note, |record| record.time);
        let last_note = self.notes.last().map_or(begin, |note| note.time);
        let last_record = self.records.last().map_or(begin, |record| record.time);
        (begin, last_note.max(last_record) - begin)
    }

    /// Returns the timeline of the replayed run as it was `at` seconds after the run's begin.
    pub(super) fn at(&mut self, at: f64) -> &Timeline {
        let (begin, length) = self.span();
        // The replay goes on from its position, and starts again for an earlier one.
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
            self.told.timeline.close(self.documents.evaluations());
        }
        &self.told.timeline
    }

    /// Returns the timeline at the end of the replayed run, with the run's job and result.
    pub(super) fn ended(&mut self) -> (&Timeline, &RunDocuments) {
        let (_, length) = self.span();
        self.at(length);
        (&self.told.timeline, &self.documents)
    }

    /// Returns the settings and the state of the replayed run at the shown moment: still in training or, if `over`,
    /// ended.
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

/// A record that is being loaded, with its index and a flag that protects it from thinning.
struct NumberedRecord {
    record: StatsRecord,
    /// Index of the record among all records of its node in the file, by which thinning selects the records to drop.
    number: usize,
    /// True if the record carries a notice or an evaluation that no other record has, so that thinning never drops it.
    stays: bool,
}

/// Reads the records of a run from its folder, and returns them with the number of a node's records that each one
/// stands for. Long runs are thinned to `RECORDS_MAX` records and those that must stay. Incomplete lines, left by a
/// client that was killed, are skipped.
fn records(folder: &Path) -> std::io::Result<(Vec<StatsRecord>, usize)> {
    let mut held: Vec<NumberedRecord> = Vec::new();
    // The newest record of each node is kept too: it has the node's last figures.
    let mut newest: BTreeMap<String, NumberedRecord> = BTreeMap::new();
    let (mut every, mut thinnable, mut evaluated) = (1, 0, 0.0);
    for line in lines(folder, METRICS)? {
        let Ok(record) = serde_json::from_slice::<StatsRecord>(&line?) else {
            continue;
        };
        // Lines that hold an evaluation have no node; records carry the same evaluations.
        if record.node.is_empty() {
            continue;
        }
        let measured = record.told_evaluations().map(|one| one.seconds).fold(0.0, f64::max);
        let node = record.node.clone();
        let one = NumberedRecord {
            number: newest.get(&node).map_or(0, |before| before.number + 1),
            stays: !record.said.is_empty() || measured > evaluated,
            record,
        };
        evaluated = measured.max(evaluated);
        let before = newest.insert(node, one);
        if let Some(before) = before.filter(|one| one.stays || one.number.is_multiple_of(every)) {
            thinnable += usize::from(!before.stays);
            held.push(before);
        }
        if thinnable > RECORDS_MAX {
            every = usize::saturating_mul(every, 2);
            held.retain(|one| one.stays || one.number.is_multiple_of(every));
            thinnable = held.iter().filter(|one| !one.stays).count();
        }
    }
    held.extend(newest.into_values());
    held.sort_by(|one, other| one.record.time.total_cmp(&other.record.time));
    Ok((held.into_iter().map(|one| one.record).collect(), every))
}

/// Reads the events of a run from `events.jsonl`; lines of an unknown kind are skipped.
fn notes(folder: &Path) -> std::io::Result<Vec<Note>> {
    let mut notes = Vec::new();
    for line in lines(folder, EVENTS)? {
        notes.extend(serde_json::from_slice::<Note>(&line?).ok());
    }
    Ok(notes)
}

/// Returns the lines of a file in a run's folder; none if the file is missing, as after a full disk.
fn lines(folder: &Path, name: &str) -> std::io::Result<impl Iterator<Item = std::io::Result<Vec<u8>>>> {
    let file = match File::open(folder.join(name)) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok(file.into_iter().flat_map(|file| BufReader::new(file).split(b'\n')))
}
