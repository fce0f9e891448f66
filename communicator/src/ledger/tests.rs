use proptest::prelude::*;
use protocol::ids::OriginId;
use protocol::job::JobDraft;
use protocol::log::batch::{OriginStatus, Payload};
use protocol::log::cursor::{CursorAdvance, ShardId};
use protocol::log::merged_range::Merger;
use protocol::weights::changes::change;
use protocol::weights::lattice::Tau;

use super::*;
use crate::small_plan::small_plan;

const RUN: RunId = RunId(1);
const WEIGHTS: usize = 20;

fn batch(origin: u64, sequence: u64, changes: Vec<u32>) -> Batch {
    let tau = Tau::from_steps(origin as u32 * 100 + sequence as u32).unwrap();
    let payload = Payload::Steps { tau, changes };
    let header = Header {
        run: RUN,
        origin: OriginId(origin),
        sequence,
        seen: 0,
        digest: payload.digest(),
        cursors: vec![CursorAdvance {
            shard: ShardId {
                epoch: 0,
                shard: origin as u32,
            },
            done: sequence as u32 * 8,
        }],
        samples: 8,
        loss: 1.0,
        status: OriginStatus::default(),
    };
    Batch { header, payload }
}

#[test]
fn batches_apply_once_and_in_turn() {
    let mut ledger = Ledger::new(RUN, vec![5; WEIGHTS]);
    let second = batch(1, 2, vec![change(3, true)]);
    assert_eq!(ledger.apply(&second), Ok(Outcome::Ahead { missing: 1 }));
    assert_eq!(ledger.audit(), Ok(Digest::of_counts(&[5; WEIGHTS])));
    let first = batch(1, 1, vec![change(3, true), change(4, false)]);
    assert_eq!(ledger.apply(&first), Ok(Outcome::Applied(Range::Safe)));
    assert_eq!(ledger.apply(&first), Ok(Outcome::Duplicate));
    assert_eq!(ledger.apply(&second), Ok(Outcome::Applied(Range::Safe)));
    assert_eq!(ledger.weights()[3], weight_of(5 + 101 + 102));
    assert_eq!(ledger.weights()[4], weight_of(5 - 101));
    assert_eq!(ledger.cursors().samples_done(), 16);
    assert!(ledger.audit().is_ok());
}

#[test]
fn a_checkpoint_with_the_same_weights_and_other_batches_is_another() {
    // First batches often change nothing.
    let with = |origin| {
        let mut ledger = Ledger::new(RUN, vec![5; WEIGHTS]);
        ledger.apply(&batch(origin, 1, Vec::new())).unwrap();
        ledger
    };
    let (one, other) = (with(1), with(2));
    let resumed = Resumed {
        run: RUN,
        digest: one.digest(),
        first: one.initial(),
        frontier: one.frontier().fingerprint(),
        samples: one.samples(),
        slots: 1,
    };
    assert_eq!((one.digest(), one.samples()), (other.digest(), other.samples()));
    assert!(one.is_that_of(&resumed));
    assert!(!other.is_that_of(&resumed));
}

#[test]
fn foreign_runs_change_nothing() {
    let mut ledger = Ledger::new(RunId(2), vec![0; WEIGHTS]);
    let expected = Err(LedgerError::ForeignRun {
        expected: RunId(2),
        found: RUN,
    });
    assert_eq!(ledger.apply(&batch(1, 1, vec![change(3, true)])), expected);
    assert_eq!(ledger.weights(), vec![0.0; WEIGHTS]);
    assert_eq!(*ledger.frontier(), Frontier::default());
}

#[test]
fn a_range_applies_where_it_begins() {
    let batches: Vec<Batch> = (1..=5)
        .map(|sequence| batch(1, sequence, vec![change(sequence as u32, true)]))
        .collect();
    let merged = |from: usize, to: usize| {
        let mut merger = Merger::new(RUN, OriginId(1), from as u64, WEIGHTS);
        for batch in &batches[from..to] {
            merger.add_batch(batch);
        }
        merger.finish().unwrap()
    };
    let mut straight = Ledger::new(RUN, vec![0; WEIGHTS]);
    for batch in &batches {
        straight.apply(batch).unwrap();
    }
    let mut ledger = Ledger::new(RUN, vec![0; WEIGHTS]);
    assert_eq!(ledger.apply_range(&merged(2, 5)), Ok(Outcome::Ahead { missing: 2 }));
    assert_eq!(ledger.apply_range(&merged(0, 3)), Ok(Outcome::Applied(Range::Safe)));
    assert_eq!(ledger.apply_range(&merged(1, 3)), Ok(Outcome::Duplicate));
    assert_eq!(ledger.apply_range(&merged(2, 5)), Ok(Outcome::Overlaps));
    assert_eq!(ledger.apply_range(&merged(3, 5)), Ok(Outcome::Applied(Range::Safe)));
    assert_eq!(ledger.head(), straight.head());
    assert_eq!(ledger.counts(), straight.counts());
    assert!(ledger.audit().is_ok());
}

#[test]
fn a_snapshot_is_checked_before_it_is_a_ledger() {
    let mut ledger = Ledger::new(RUN, vec![5; WEIGHTS]);
    ledger.apply(&batch(1, 1, vec![change(3, true)])).unwrap();
    ledger.apply(&batch(2, 1, vec![change(4, false)])).unwrap();
    let snapshot = || Snapshot {
        head: ledger.head(),
        counts: ledger.counts().to_vec(),
        log: Vec::new(),
    };
    let initial = ledger.initial();
    let restored = Ledger::restored(snapshot(), RUN, initial).unwrap();
    assert_eq!((restored.head(), restored.digest()), (ledger.head(), ledger.digest()));
    assert!(restored.audit().is_ok());
    let error = |snapshot, run| Ledger::restored(snapshot, run, initial).unwrap_err();
    assert_eq!(error(snapshot(), RunId(7)), SnapshotError::ForeignRun);
    let mut damaged = snapshot();
    damaged.counts[7] ^= 1;
    assert_eq!(error(damaged, RUN), SnapshotError::Damaged);
    let mut false_claim = snapshot();
    false_claim.head.applied[0].digest.0 += 1;
    assert_eq!(error(false_claim, RUN), SnapshotError::Damaged);
}

#[test]
fn the_digest_of_the_first_weights_follows_from_a_checkpoint() {
    let mut ledger = Ledger::new(RUN, vec![5; WEIGHTS]);
    ledger.apply(&batch(1, 1, vec![change(3, true)])).unwrap();
    ledger.apply(&batch(2, 1, vec![change(4, false)])).unwrap();
    let first = Digest::of_counts(ledger.counts()) - ledger.head().digest_of_batches();
    assert_eq!(first, Digest::of_counts(&[5; WEIGHTS]));
}

#[test]
fn a_node_that_drew_other_weights_takes_a_snapshot_of_the_runs() {
    let mut ledger = Ledger::new(RUN, vec![5; WEIGHTS]);
    ledger.apply(&batch(1, 1, vec![change(3, true)])).unwrap();
    let snapshot = Snapshot {
        head: ledger.head(),
        counts: ledger.counts().to_vec(),
        log: Vec::new(),
    };
    let mut plan = small_plan(2);
    plan.first = ledger.initial();
    let others = |plan: &RunPlan| Ledger::new(RUN, vec![6; WEIGHTS]).at_beginning(plan, NodeId(2));
    let restored = |initial| Ledger::restored(snapshot.clone(), RUN, initial).map(|ledger| ledger.digest());
    assert_eq!(
        restored(others(&plan).initial()),
        Err(SnapshotError::Damaged),
        "the weights of layers follow from the seed"
    );
    let draft = JobDraft {
        model: Some("py:net.py".into()),
        ..JobDraft::default()
    };
    *plan.job = draft.resolve().unwrap();
    let others = others(&plan);
    assert!(others.audit().is_ok());
    assert_eq!(restored(others.initial()), Ok(ledger.digest()));
}

#[test]
fn a_flipped_bit_is_found() {
    let mut ledger = Ledger::new(RUN, vec![7; WEIGHTS]);
    ledger.flip(11, 9);
    let AuditError { expected, found } = ledger.audit().unwrap_err();
    assert_ne!(expected, found);
}

#[test]
fn one_flipped_bit_is_put_right_even_if_it_left_the_range() {
    let mut ledger = Ledger::new(RUN, vec![7; WEIGHTS]);
    assert_eq!(ledger.mend(), Ok(None));
    ledger.flip(11, 30);
    let outcome = ledger.apply(&batch(1, 1, vec![change(11, true)]));
    assert_eq!(outcome, Ok(Outcome::Diverged(RangeError)));
    assert_eq!(ledger.mend(), Ok(Some(11)));
    assert!(!ledger.is_diverged() && ledger.audit().is_ok());
    ledger.flip(3, 2);
    ledger.flip(4, 5);
    assert!(ledger.mend().is_err());
}

#[test]
fn leaving_the_range_ends_the_run() {
    let mut ledger = Ledger::new(RUN, vec![protocol::weights::lattice::RANGE_ERROR_STEPS - 50; WEIGHTS]);
    let last = ledger.apply(&batch(1, 1, vec![change(0, true)]));
    assert_eq!(last, Ok(Outcome::Diverged(RangeError)));
    assert_eq!(ledger.frontier().applied(OriginId(1)), 1);
    assert!(ledger.audit().is_ok());
    let next = batch(1, 2, vec![change(1, false)]);
    assert_eq!(ledger.apply(&next), Err(LedgerError::Range(RangeError)));
    assert_eq!(ledger.frontier().applied(OriginId(1)), 1);
}

proptest! {
    /// Every interleaving of several origins' batches, with some delivered twice, gives the same ledger.
    #[test]
    fn any_interleaving_gives_the_same_ledger(seed: u64, lengths in proptest::collection::vec(0..6u64, 1..5)) {
        let mut random = protocol::rng::CounterRng::new(seed, 0);
        let mut batches = Vec::new();
        for (origin, &length) in (1u64..).zip(&lengths) {
            for sequence in 1..=length {
                let mut indices: Vec<u32> = (0..5).map(|_| random.below(WEIGHTS as u64) as u32).collect();
                indices.sort_unstable();
                indices.dedup();
                let changes = indices.iter().map(|&index| change(index, index % 2 == 0)).collect();
                batches.push(batch(origin, sequence, changes));
            }
        }
        let mut straight = Ledger::new(RUN, vec![0; WEIGHTS]);
        for batch in &batches {
            prop_assert_eq!(straight.apply(batch), Ok(Outcome::Applied(Range::Safe)));
        }
        let mut shuffled = Ledger::new(RUN, vec![0; WEIGHTS]);
        while shuffled.frontier() != straight.frontier() {
            let next = &batches[random.below(batches.len() as u64) as usize];
            shuffled.apply(next).unwrap();
        }
        prop_assert_eq!(shuffled.weights(), straight.weights());
        prop_assert_eq!(shuffled.digest(), straight.digest());
        prop_assert_eq!(shuffled.cursors(), straight.cursors());
        prop_assert!(shuffled.audit().is_ok());
    }
}
