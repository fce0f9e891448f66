//! Tests that batches move no more cursors than they may, and that the cursors count every sample.

use proptest::prelude::*;
use protocol::job::JobDraft;
use protocol::job::split::SHARDS_PER_SLOT;
use protocol::log::batch::CURSORS_MAX;
use protocol::log::cursor::{CursorAdvance, Cursors, ShardId};

use super::*;
use crate::trainer::fake::FakeTrainer;

const WEIGHTS: usize = 50;

fn points(samples: usize) -> (tempfile::TempDir, Dataset) {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<String> = (0..samples).map(|i| format!("{i},side{}", i % 2)).collect();
    std::fs::write(folder.path().join("points.csv"), rows.join("\n")).unwrap();
    let spec = "csv:points.csv".parse().unwrap();
    let dataset = Dataset::open(&spec, 1, Some(folder.path())).unwrap();
    (folder, dataset)
}

/// Trains everything as one of `slots` workers of which the others are never heard of, so that their samples are
/// claimed. Steps are throttled where `throttled` says so, if that is possible.
fn train<const BEGINS: bool>(
    trainer: FakeTrainer<BEGINS>,
    dataset: &Dataset,
    (slots, minibatch): (usize, u32),
    throttled: &[bool],
) -> Result<(), TestCaseError> {
    let draft = JobDraft {
        model: Some("dense 2".into()),
        epochs: Some(2),
        minibatch: Some(minibatch),
        tau: Some(0.125),
        ..JobDraft::default()
    };
    let identity = Identity {
        slots,
        founders: slots,
        ..Identity::alone(7)
    };
    let mut training = Training::new(trainer, &draft.resolve().unwrap(), dataset, identity).unwrap();
    let mut counted = Cursors::default();
    let mut samples = 0;
    let mut throttled = throttled.iter().cycle();
    loop {
        let mut encoded = Vec::new();
        let next = training.step(*throttled.next().unwrap(), &mut encoded).unwrap();
        match next {
            Next::Kept(_) => continue,
            Next::Emitted(_) => {}
            Next::Done => encoded = training.close().unwrap().encoded,
            Next::Waiting | Next::Passed(_) => panic!("a worker without others must not wait"),
        }
        // A frame that moves too many cursors is not decoded.
        let header = Batch::decode(&encoded, WEIGHTS).unwrap().header;
        prop_assert!(header.cursors.len() <= CURSORS_MAX);
        samples += u64::from(header.samples);
        counted.extend(header.cursors);
        if next == Next::Done {
            break;
        }
    }
    let mut trained = training.trainer().trained.clone();
    trained.sort_unstable();
    let expected: Vec<u32> = (0..dataset.train.len() as u32).flat_map(|sample| [sample; 2]).collect();
    prop_assert_eq!(trained, expected);
    prop_assert_eq!(
        (samples, counted.samples_done()),
        (2 * dataset.train.len() as u64, samples)
    );
    Ok(())
}

/// Tests that a batch counts the samples of throttled steps before a worker waits: other workers may not train them, so
/// the run would never end. A worker waits alone if its node says when it may close, and beside another that has begun
/// all remaining shards.
#[test]
fn samples_of_throttled_steps_are_counted_before_a_worker_waits() {
    for (slots, keep) in [(1, "best"), (2, "last"), (2, "best")] {
        let (_folder, dataset) = points(100);
        let draft = JobDraft {
            model: Some("dense 2".into()),
            epochs: Some(1),
            minibatch: Some(8),
            tau: Some(0.125),
            keep: Some(keep.into()),
            ..JobDraft::default()
        };
        let identity = Identity {
            slots,
            ..Identity::alone(7)
        };
        let trainer = FakeTrainer::<false>::new(&[0; WEIGHTS]);
        let mut training = Training::new(trainer, &draft.resolve().unwrap(), &dataset, identity).unwrap();
        let begun = (SHARDS_PER_SLOT..SHARDS_PER_SLOT * slots as u32).map(|shard| CursorAdvance {
            shard: ShardId { epoch: 0, shard },
            done: 1,
        });
        training.learner.plan.observe(OriginId(99), &begun.collect::<Vec<_>>());
        let (mut samples, mut encoded) = (0, Vec::new());
        loop {
            encoded.clear();
            match training.step(true, &mut encoded).unwrap() {
                Next::Kept(_) => {}
                Next::Emitted(_) => samples += Batch::decode(&encoded, WEIGHTS).unwrap().header.samples,
                Next::Waiting => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(samples as usize, training.trainer().trained.len(), "{slots} {keep}");
        assert!(samples > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_batch_can_be_sent_and_every_sample_is_counted(
        rows in 20usize..300,
        slots in 1usize..12,
        minibatch in 1u32..400,
        throttled in prop::collection::vec(any::<bool>(), 1..20),
    ) {
        let (_folder, dataset) = points(rows);
        // At least one step is not throttled; else no batch would ever leave.
        let throttled = [throttled, vec![false]].concat();
        train(FakeTrainer::new(&[0; WEIGHTS]), &dataset, (slots, minibatch), &throttled)?;
        train(FakeTrainer::beginning(&[0; WEIGHTS]), &dataset, (slots, minibatch), &throttled)?;
    }
}
