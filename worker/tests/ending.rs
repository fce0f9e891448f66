//! Tests of the end of a run for a worker process: it finishes whenever and however often it is asked, and after an
//! abort.

mod harness;

use std::path::Path;

use protocol::ids::RunId;
use protocol::log::batch::{Batch, OriginStatus};
use protocol::log::frontier::Frontier;
use protocol::stats::measured::Scores;
use protocol::weights::digest::Digest;
use protocol::wire::attach::{FromWorker, SaveOrder, ToWorker};

use harness::{Heard, Ledger, Node, job};

fn order(path: &Path) -> ToWorker {
    ToWorker::Finish {
        save: Some(SaveOrder {
            path: path.into(),
            frontier: Frontier::default(),
            with_pipeline: true,
        }),
    }
}

fn finished(node: &mut Node) -> Option<Digest> {
    match node.hear() {
        Heard::Word(FromWorker::Finished { digest }) => digest,
        other => panic!("{other:?}"),
    }
}

fn saved(node: &mut Node) -> Result<Option<Scores>, String> {
    match node.hear() {
        Heard::Word(FromWorker::SavedModel { run: RunId(1), saved }) => saved,
        other => panic!("{other:?}"),
    }
}

/// Reads messages until the origin is closed. Returns the status of the last batch.
fn close(node: &mut Node, ledger: &mut Ledger) -> OriginStatus {
    let mut status = OriginStatus::default();
    loop {
        match node.hear() {
            Heard::Batch(encoded) => {
                status = Batch::decode(&encoded, ledger.counts.len()).unwrap().header.status;
                ledger.apply(&encoded);
            }
            Heard::Word(FromWorker::Closed { .. }) => return status,
            other @ Heard::Word(_) => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_worker_that_is_seated_when_the_run_stops_closes_and_finishes_as_often_as_it_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let (job, mut ledger) = job(folder.path());
    let mut node = Node::start(folder.path());
    node.begin(&job, &ledger.counts.clone(), ledger.assignment(&job, None));
    node.say(&ToWorker::Stop);
    // Sent before the worker can have closed, as a node in a hurry does.
    node.say(&ToWorker::Finish { save: None });
    let status = close(&mut node, &mut ledger);
    assert!(status.last && status.stop);
    let digest = Some(Digest::of_counts(&ledger.counts));
    assert_eq!(finished(&mut node), digest);

    // If the worker that was to save the model is gone, another one is asked, possibly repeatedly.
    let model = folder.path().join("model.safetensors");
    for _ in 0..2 {
        node.say(&order(&model));
        assert_eq!(finished(&mut node), digest);
        assert!(saved(&mut node).is_ok_and(|scores| scores.unwrap().accuracy >= Some(0.0)));
        assert!(model.exists());
        std::fs::remove_file(&model).unwrap();
    }

    // If a model cannot be saved, the digest is reported nevertheless and the worker goes on.
    let file = folder.path().join("no-folder");
    std::fs::write(&file, "").unwrap();
    node.say(&order(&file.join("model.safetensors")));
    assert_eq!(finished(&mut node), digest);
    let reason = saved(&mut node).unwrap_err();
    assert!(reason.contains("no-folder"), "{reason}");
    node.abort();
    node.end();
}

#[test]
fn a_worker_says_when_it_is_idle_and_takes_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let (job, ledger) = job(folder.path());
    let mut node = Node::start(folder.path());
    // Aborts without a run, after a job that was only prepared, and in the middle of a run.
    node.abort();
    node.prepare(RunId(1), &job);
    node.abort();
    node.begin(&job, &ledger.counts, ledger.assignment(&job, None));
    while !matches!(node.hear(), Heard::Batch(_)) {}
    node.abort();
    // No further message belongs to the run: the next one answers the next order.
    node.prepare(RunId(2), &job);
    node.end();
}

#[test]
fn a_node_that_goes_without_having_read_everything_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    // The worker's first messages are not read: the system answers with a reset, or refuses to take them.
    for _ in 0..20 {
        Node::start(folder.path()).end();
    }
}
