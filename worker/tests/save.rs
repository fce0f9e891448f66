//! Tests that a worker process saves its own state on request, and another continues from it.

mod harness;

use std::path::PathBuf;

use protocol::ids::OriginId;
use protocol::log::batch::Batch;
use protocol::wire::attach::{FromWorker, ToWorker};
use worker::training::state_file;

use harness::{Heard, Node, job};

#[test]
fn a_worker_saves_between_two_batches_and_another_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (job, mut ledger) = job(folder.path());
    let weights = ledger.counts.len();
    let path = folder.path().join("state");
    let save = ToWorker::Save { path: path.clone() };
    let mut node = Node::start(folder.path());

    // No run trains yet.
    node.say(&save);
    match node.hear() {
        Heard::Word(FromWorker::Saved {
            sequence: None,
            path: named,
        }) => assert_eq!(named, path),
        other => panic!("{other:?}"),
    }

    // An older file belongs to other batches.
    std::fs::write(&path, "old").unwrap();
    node.begin(&job, &ledger.counts, ledger.assignment(&job, None));
    let mut last = 0;
    let (saved, at) = loop {
        match node.hear() {
            Heard::Batch(encoded) => {
                last = ledger.apply(&encoded);
                if last == 40 {
                    node.say(&save);
                }
            }
            Heard::Word(FromWorker::Saved { sequence, path: named }) => {
                assert_eq!((sequence, &named), (Some(last), &path));
                assert!(std::fs::read(&path).map_or(true, |bytes| bytes != b"old"));
                break (ledger.clone(), last);
            }
            other @ Heard::Word(_) => panic!("{other:?}"),
        }
    };
    // The batches of a worker that is not interrupted.
    let mut expected = Vec::new();
    while expected.len() < 5 {
        match node.hear() {
            Heard::Batch(encoded) => expected.push(encoded),
            other @ Heard::Word(_) => panic!("{other:?}"),
        }
    }
    node.end();
    let state = state_file::load(&path, weights).unwrap();
    assert_eq!((state.origin, state.sequence), (OriginId(5), at));

    // Steps that are throttled because this test is slow lead to other batches of the same samples.
    let steady = |encoded_batches: &[Vec<u8>]| {
        let samples = |encoded: &Vec<u8>| Batch::decode(encoded, weights).unwrap().header.samples;
        encoded_batches.iter().all(|encoded| samples(encoded) == 16)
    };
    let go_on = |restore: Option<PathBuf>| {
        let mut node = Node::start(folder.path());
        node.begin(&job, &saved.counts, saved.assignment(&job, restore));
        let mut found = Vec::new();
        while found.len() < 5 {
            match node.hear() {
                Heard::Batch(encoded) => found.push(encoded),
                other @ Heard::Word(_) => panic!("{other:?}"),
            }
        }
        node.abort();
        node.end();
        found
    };
    let restored = go_on(Some(path.clone()));
    if steady(&expected) && steady(&restored) {
        assert_eq!(restored, expected);
    }
    let first = |encoded_batches: &[Vec<u8>]| Batch::decode(&encoded_batches[0], weights).unwrap().header.sequence;
    assert_eq!(first(&restored), at + 1);

    // A file that cannot be used is ignored.
    std::fs::write(&path, "torn").unwrap();
    assert_eq!(first(&go_on(Some(path))), 1);
}
