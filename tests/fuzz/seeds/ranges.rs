//! Merged ranges, snapshots, checkpoints and states of workers, for the corpus.

use communicator::checkpoint;
use protocol::ids::OriginId;
use protocol::log::batch::Batch;
use protocol::log::merged_range::{MergedRange, Merger};
use protocol::wire::snapshot;
use protocol::wire::snapshot::{Applied, EntryKind, Head, LogEntry};
use worker::trainer::{Numbers, TrainerState};
use worker::training::State;
use worker::training::state_file;

use super::batches::{batch, changes, steps};
use super::values::{data_info, job};
use crate::engine::add_to_corpus;
use crate::targets::{SNAPSHOT_WEIGHTS, WEIGHTS};

/// Returns two batches as one merged range.
pub(super) fn merged_range() -> MergedRange {
    let decoded = |words: &[u32]| Batch::decode(&batch(&steps(words), 3), WEIGHTS).unwrap();
    let [_, (_, sparse), (_, dense), _] = changes();
    let (first, mut second) = (decoded(&sparse), decoded(&dense));
    second.header.sequence += 1;
    let mut merger = Merger::new(
        first.header.run,
        first.header.origin,
        first.header.sequence - 1,
        WEIGHTS,
    );
    merger.add_batch(&first);
    merger.add_batch(&second);
    merger.finish().unwrap()
}

pub(super) fn ranges() {
    let range = merged_range();
    add_to_corpus("merged_range", "two", &range.encode());
    let run = range.header.run;
    let empty = Merger::new(run, OriginId(3), 0, WEIGHTS).finish().unwrap();
    let mut empty = empty.clone();
    empty.header.to = 1;
    add_to_corpus("merged_range", "empty", &empty.encode());
    let entry = |merged, bytes: Vec<u8>| LogEntry {
        origin: range.header.origin,
        from: range.header.from,
        to: range.header.to,
        bytes: bytes.into(),
        kind: if merged { EntryKind::Range } else { EntryKind::Batch },
    };
    let head = Head {
        run,
        applied: vec![Applied {
            origin: range.header.origin,
            sequence: range.header.to,
            digest: range.header.digest,
        }],
        cursors: range.header.cursors.clone(),
        samples: range.header.samples,
        weights: SNAPSHOT_WEIGHTS as u64,
    };
    let counts: Vec<i32> = (0..SNAPSHOT_WEIGHTS as i32).map(|i| i.pow(3) - 70).collect();
    let log = [entry(true, range.encode()), entry(false, batch(&steps(&[]), 0))];
    for (name, log) in [("without-log", &log[..0]), ("with-log", &log[..])] {
        let bytes = snapshot::encode(head.clone(), counts.clone().into(), log).next(usize::MAX);
        add_to_corpus("snapshot", name, &bytes);
    }
    let header = checkpoint::Header {
        run,
        job: Box::new(job()),
        data: data_info().into(),
        slots: 3,
        stage: 0,
        states: vec![checkpoint::State {
            origin: range.header.origin,
            sequence: 300,
            path: "node.0.1.state".into(),
        }],
    };
    let folder = tempfile::tempdir().unwrap();
    let path = checkpoint::path(folder.path(), "node");
    checkpoint::write(&path, &header, head, counts.into()).unwrap();
    add_to_corpus("checkpoint", "node", &std::fs::read(path).unwrap());
    let state = State {
        origin: range.header.origin,
        sequence: 300,
        steps: 301,
        emission: vec![0.01, 0.1, 0.3],
        trainer: TrainerState {
            numbers: Numbers { ahead: 0.5, turns: 2 },
            arrays: vec![vec![0.25; SNAPSHOT_WEIGHTS], vec![-1.5; SNAPSHOT_WEIGHTS]],
        },
    };
    let path = folder.path().join("node.0.1.state");
    state_file::save(&path, &state).unwrap();
    add_to_corpus("state_file", "worker", &std::fs::read(path).unwrap());
}
