//! Tests of cursors.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::ids::{OriginId, RunId};
use crate::job::JobDraft;
use crate::log::batch::BATCH_BYTES_MAX;
use crate::wire::attach::Assignment;

/// Generates progress in few shards by small numbers, so that many of them meet.
fn advances() -> impl Strategy<Value = Vec<CursorAdvance>> {
    let advance = (0u32..5, 0u32..3, 0u32..5).prop_map(|(epoch, shard, done)| CursorAdvance {
        shard: ShardId { epoch, shard },
        done,
    });
    prop::collection::vec(advance, 0..40)
}

fn some_epoch_spans() -> impl Strategy<Value = Vec<EpochSpan>> {
    let epoch_span =
        (0u32..3, 0u32..9, 0u32..9, 0u32..5, any::<bool>()).prop_map(|(shard, first, span, done, late)| {
            // Half of the spans lie at the last possible epochs.
            let first = if late { u32::MAX - first } else { first };
            EpochSpan {
                shard,
                first,
                last: first.saturating_add(span),
                done,
            }
        });
    prop::collection::vec(epoch_span, 0..20)
}

fn cursors() -> impl Strategy<Value = Cursors> {
    some_epoch_spans().prop_map(|epoch_spans| {
        let mut cursors = Cursors::default();
        for epoch_span in epoch_spans {
            cursors.raise(epoch_span);
        }
        cursors
    })
}

fn merged(a: &Cursors, b: &Cursors) -> Cursors {
    let mut both = a.clone();
    both.merge(b);
    both
}

/// Returns the progress of each shard by itself, for comparison with spans of epochs.
fn singly(cursors: &Cursors) -> BTreeMap<ShardId, u32> {
    let each = |epoch_span: EpochSpan| epoch_span.shards().map(move |shard| (shard, epoch_span.done));
    cursors.epoch_spans().flat_map(each).collect()
}

#[test]
fn an_advance_counts_only_what_is_new() {
    let shard = ShardId { epoch: 1, shard: 2 };
    let mut cursors = Cursors::default();
    let counts = [5, 3, 5, 9, 0].map(|done| cursors.advance(CursorAdvance { shard, done }));
    assert_eq!(counts, [5, 0, 0, 4, 0]);
    assert_eq!(cursors.done(shard), 9);
    assert_eq!(cursors.samples_done(), 9);
    assert_eq!(cursors.done(ShardId { epoch: 2, shard: 1 }), 0);
}

#[test]
fn a_shard_at_zero_is_a_shard_not_begun() {
    let shard = ShardId { epoch: 0, shard: 0 };
    let cursors = Cursors::from(vec![CursorAdvance { shard, done: 0 }]);
    assert_eq!(cursors, Cursors::default());
}

/// Tests that memory does not grow with epochs: forty samples among ten slots, each with four samples in four shards.
#[test]
fn a_million_epochs_take_the_room_of_one() {
    const EPOCHS: u32 = 1_000_000;
    const SINGLY: u32 = 100_000;
    const SHARDS: u32 = 40;
    let bytes = |cursors: &Cursors| postcard::to_stdvec(cursors).unwrap().len();
    let mut cursors = Cursors::default();
    let mut after_ten = (0, 0);
    let mut most = 0;
    for step in 0..SINGLY + 20 {
        for shard in 0..SHARDS {
            // Slots are up to two epochs apart, and the batches of every fourth slot come a second time, later.
            let late = (shard / 4).is_multiple_of(4).then_some(5 + shard % 7);
            for lag in [Some(shard % 3), late].into_iter().flatten() {
                if let Some(epoch) = step.checked_sub(lag).filter(|&epoch| epoch < SINGLY) {
                    let shard = ShardId { epoch, shard };
                    cursors.advance(CursorAdvance { shard, done: 1 });
                }
            }
        }
        most = most.max(cursors.epoch_spans.len());
        if step == 10 {
            after_ten = (cursors.epoch_spans.len(), bytes(&cursors));
        }
    }
    // The remaining epochs come as merged ranges of one slot's batches each, as for a member that was away.
    for first in (SINGLY..EPOCHS).step_by(1000) {
        for slot in 0..10 {
            let mut range = Cursors::default();
            for shard in 4 * slot..4 * slot + 4 {
                let last = first + 999;
                range.raise(EpochSpan {
                    shard,
                    first,
                    last,
                    done: 1,
                });
            }
            assert_eq!(range.epoch_spans.len(), 4);
            cursors.merge(&range);
        }
        most = most.max(cursors.epoch_spans.len());
    }
    assert_eq!(cursors.samples_done(), u64::from(EPOCHS) * u64::from(SHARDS));
    assert_eq!((cursors.epoch_spans.len(), after_ten.0, most), (40, 40, 40));
    // Only the numbers of epochs have become longer.
    assert_eq!((after_ten.1, bytes(&cursors)), (161, 241));
    let job = Box::new(JobDraft::default().resolve().unwrap());
    let job_bytes = JobDraft::from(&*job).to_toml().unwrap().len();
    let assignment = Assignment {
        run: RunId(1),
        job,
        paced: None,
        founders: 10,
        origin: OriginId(2),
        slot: 0,
        slots: 10,
        cursors,
        batches: 1,
        samples: 1,
        restore: None,
        round: 3,
        workers: 10,
        pipeline: None,
    };
    assert!(postcard::to_stdvec(&assignment).unwrap().len() < job_bytes + 300);
}

#[test]
fn the_most_cursors_that_can_be_held_fit_into_a_message_and_no_more_are_taken() {
    let every_other = |index: u32| EpochSpan {
        shard: u32::MAX,
        first: u32::MAX - 2 * index,
        last: u32::MAX - 2 * index,
        done: u32::MAX,
    };
    let mut cursors = Cursors::default();
    for index in 0..EPOCH_SPANS_MAX as u32 {
        assert_eq!(cursors.raise(every_other(index)).begun, 1);
    }
    let bytes = postcard::to_stdvec(&cursors).unwrap();
    assert!(bytes.len() < BATCH_BYTES_MAX / 2);
    assert_eq!(postcard::from_bytes::<Cursors>(&bytes).as_ref(), Ok(&cursors));
    let before = cursors.clone();
    assert_eq!(cursors.raise(every_other(EPOCH_SPANS_MAX as u32)), News::default());
    assert_eq!(cursors, before);
    // An advance between two spans joins them into one, which makes room for another span.
    let between = EpochSpan {
        first: u32::MAX - 1,
        last: u32::MAX - 1,
        ..every_other(0)
    };
    assert_eq!(cursors.raise(between).begun, 1);
    assert_eq!(cursors.raise(every_other(EPOCH_SPANS_MAX as u32)).begun, 1);
    let mut bytes = postcard::to_stdvec(&before.epoch_spans().collect::<Vec<_>>()).unwrap();
    let one_more = postcard::to_stdvec(&every_other(EPOCH_SPANS_MAX as u32)).unwrap();
    assert!(postcard::from_bytes::<Cursors>(&bytes).is_ok());
    // The same list with one more span in front.
    let count = postcard::to_stdvec(&(EPOCH_SPANS_MAX as u32)).unwrap().len();
    let announced = postcard::to_stdvec(&(EPOCH_SPANS_MAX as u32 + 1)).unwrap();
    bytes.splice(..count, announced.into_iter().chain(one_more));
    assert!(postcard::from_bytes::<Cursors>(&bytes).is_err());
}

#[test]
fn lists_that_nobody_writes_are_refused() {
    let read = |list: &[(u32, u32, u32, u32)]| {
        postcard::from_bytes::<Cursors>(&postcard::to_stdvec(&list.to_vec()).unwrap()).is_ok()
    };
    assert!(read(&[(0, 0, 3, 5), (0, 4, 4, 6), (1, 0, 0, 1)]));
    assert!(
        !read(&[(0, 3, 2, 5)]),
        "an epoch span that ends before it begins must be refused"
    );
    assert!(
        !read(&[(0, 0, 3, 0)]),
        "an epoch span without trained samples must be refused"
    );
    assert!(
        !read(&[(0, 0, 3, 5), (0, 3, 4, 6)]),
        "overlapping epoch spans must be refused"
    );
    assert!(
        !read(&[(1, 0, 0, 1), (0, 0, 3, 5)]),
        "epoch spans out of order must be refused"
    );
    let all = |shard| (shard, 0, u32::MAX, u32::MAX);
    assert!(read(&[all(0)]));
    assert!(
        !read(&[all(0), all(1)]),
        "a sum of samples that overflows must be refused"
    );
}

proptest! {
    /// Tests that spans of epochs agree with a plain map of all shards.
    #[test]
    fn epoch_spans_say_what_single_cursors_would(epoch_spans in some_epoch_spans()) {
        let mut plain: BTreeMap<ShardId, u32> = BTreeMap::new();
        let mut cursors = Cursors::default();
        for epoch_span in epoch_spans {
            let mut expected = News::default();
            for shard in epoch_span.shards().filter(|_| epoch_span.done > 0) {
                let done = plain.entry(shard).or_default();
                expected.begun += u64::from(*done == 0);
                expected.samples += u64::from(epoch_span.done.saturating_sub(*done));
                *done = (*done).max(epoch_span.done);
            }
            prop_assert_eq!(cursors.raise(epoch_span), expected);
            prop_assert_eq!(&singly(&cursors), &plain);
            prop_assert_eq!(cursors.samples_done(), plain.values().map(|&done| u64::from(done)).sum::<u64>());
        }
        for (shard, done) in plain {
            prop_assert_eq!(cursors.done(shard), done);
        }
        // The spans are as long as possible.
        let all: Vec<EpochSpan> = cursors.epoch_spans().collect();
        for pair in all.windows(2) {
            let meet = pair[0].shard == pair[1].shard && pair[0].last + 1 == pair[1].first;
            prop_assert!(!(meet && pair[0].done == pair[1].done));
        }
    }

    #[test]
    fn merging_is_commutative(a in cursors(), b in cursors()) {
        prop_assert_eq!(merged(&a, &b), merged(&b, &a));
    }

    #[test]
    fn merging_is_associative(a in cursors(), b in cursors(), c in cursors()) {
        prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
    }

    #[test]
    fn merging_is_idempotent(a in cursors(), b in cursors()) {
        prop_assert_eq!(merged(&a, &a), a.clone());
        let both = merged(&a, &b);
        prop_assert_eq!(merged(&both, &b), both);
    }

    #[test]
    fn merging_never_goes_back(a in cursors(), b in cursors()) {
        let both = merged(&a, &b);
        for (shard, done) in singly(&a).into_iter().chain(singly(&b)) {
            prop_assert!(both.done(shard) >= done);
        }
        prop_assert!(both.samples_done() >= a.samples_done().max(b.samples_done()));
    }

    #[test]
    fn the_order_of_advances_does_not_matter(
        (advances, shuffled) in advances().prop_flat_map(|advances| {
            (Just(advances.clone()), Just(advances).prop_shuffle())
        }),
    ) {
        prop_assert_eq!(Cursors::from(advances), Cursors::from(shuffled));
    }

    /// Tests that progress may be cut into parts that are merged late, twice or in another order.
    #[test]
    fn parts_make_the_whole(advances in advances(), cut in any::<prop::sample::Index>()) {
        let whole = Cursors::from(advances.clone());
        let (early, late) = advances.split_at(cut.index(advances.len() + 1));
        let (early, late) = (Cursors::from(early.to_vec()), Cursors::from(late.to_vec()));
        prop_assert_eq!(&merged(&late, &early), &whole);
        prop_assert_eq!(&merged(&merged(&whole, &late), &early), &whole);
    }

    #[test]
    fn new_samples_add_up(advances in advances()) {
        let mut cursors = Cursors::default();
        let new: u64 = advances.iter().map(|&advance| u64::from(cursors.advance(advance))).sum();
        prop_assert_eq!(new, cursors.samples_done());
        prop_assert_eq!(new, singly(&cursors).values().map(|&done| u64::from(done)).sum::<u64>());
    }

    #[test]
    fn cursors_survive_text_and_bytes(cursors in cursors()) {
        let json = serde_json::to_string(&cursors).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Cursors>(&json).unwrap(), &cursors);
        let bytes = postcard::to_stdvec(&cursors).unwrap();
        prop_assert_eq!(postcard::from_bytes::<Cursors>(&bytes).unwrap(), cursors);
    }
}
