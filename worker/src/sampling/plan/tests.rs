//! Tests of the sample plan.

use proptest::prelude::*;

use super::*;
use protocol::job::split::{SHARDS_PER_SLOT, SLOTS_MAX, Split};
use protocol::log::cursor::EpochSpan;

pub(super) fn shared(labels: Vec<u32>, slots: usize, epochs: u32, minibatch: usize) -> SharedPlan {
    SharedPlan {
        split: Split::Random,
        seed: 11,
        labels: labels.into(),
        slots,
        balanced: false,
        dealt_once: false,
        epochs,
        minibatch,
        claims_after_batches: false,
        trainers: Trainers::All,
        founders: slots,
    }
}

pub(super) fn shared_plans() -> impl Strategy<Value = SharedPlan> {
    (
        prop::sample::select(Split::ALL.to_vec()),
        any::<u64>(),
        prop::collection::vec(0u32..5, 0..200),
        1usize..8,
        any::<bool>(),
        0u32..4,
        1usize..40,
    )
        .prop_map(|(split, seed, labels, slots, balanced, epochs, minibatch)| SharedPlan {
            split,
            seed,
            labels: labels.into(),
            slots,
            balanced,
            dealt_once: seed.is_multiple_of(2),
            epochs,
            minibatch,
            claims_after_batches: false,
            trainers: Trainers::All,
            founders: slots,
        })
}

/// Samples of one minibatch, and the shard positions that it advances.
pub(super) type Minibatch = (Vec<u32>, Vec<CursorAdvance>);

pub(super) fn next(plan: &mut SamplePlan) -> Option<Minibatch> {
    next_within(plan, usize::MAX)
}

fn next_within(plan: &mut SamplePlan, shards_max: usize) -> Option<Minibatch> {
    // The buffers' contents must not matter.
    let (mut indices, mut advances) = (vec![77], Vec::new());
    let more = plan.next_minibatch(shards_max, &mut indices, &mut advances);
    assert!(more || (indices.is_empty() && advances.is_empty()));
    more.then_some((indices, advances))
}

fn all_minibatches(mut plan: SamplePlan) -> Vec<Minibatch> {
    std::iter::from_fn(|| next(&mut plan)).collect()
}

fn samples(minibatches: &[Minibatch]) -> Vec<u32> {
    minibatches.iter().flat_map(|(indices, _)| indices.clone()).collect()
}

fn cursors(minibatches: &[Minibatch]) -> Cursors {
    minibatches.iter().flat_map(|(_, advances)| advances.clone()).collect()
}

#[test]
fn one_slot_trains_everything_in_full_minibatches() {
    let plan = SamplePlan::new(shared(vec![0; 100], 1, 2, 32), 0).unwrap();
    let sizes: Vec<usize> = all_minibatches(plan).iter().map(|(indices, _)| indices.len()).collect();
    assert_eq!(sizes, [32, 32, 32, 4, 32, 32, 32, 4]);
}

#[test]
fn a_slot_without_samples_begins_to_claim_at_once_however_many_epochs_there_are() {
    for slot in 0..2 {
        let mut plan = SamplePlan::new(shared(vec![3], 2, u32::MAX, 8), slot).unwrap();
        assert_eq!(next(&mut plan).unwrap().0, [0]);
        assert!(!plan.is_complete());
    }
}

#[test]
fn cursors_beyond_the_end_of_a_shard_or_a_run_do_no_harm() {
    let mut plan = SamplePlan::new(shared(vec![0; 64], 1, 1, 64), 0).unwrap();
    let shard = ShardId { epoch: 0, shard: 0 };
    plan.skip_done(&Cursors::from(vec![CursorAdvance { shard, done: u32::MAX }]));
    let nowhere = [(0, 16), (1, 0), (u32::MAX, u32::MAX)];
    let nowhere = nowhere.map(|(epoch, shard)| CursorAdvance {
        shard: ShardId { epoch, shard },
        done: 3,
    });
    plan.skip_done(&Cursors::from(nowhere.to_vec()));
    plan.observe(OriginId(7), &nowhere);
    assert_eq!(samples(&all_minibatches(plan.clone())).len(), 60);
    while next(&mut plan).is_some() {}
    assert!(plan.is_complete());
}

/// Tests that memory does not grow with epochs: two slots tell each other of every batch, and one of them is a few
/// epochs ahead.
#[test]
fn a_plan_takes_no_more_room_after_many_epochs() {
    const EPOCHS: u32 = 5_000;
    let plan = |slot| SamplePlan::new(shared(vec![0; 40], 2, EPOCHS, 7), slot).unwrap();
    let (mut ahead, mut behind) = (plan(0), plan(1));
    let mut most = 0;
    for step in 0.. {
        let minibatch = if step < 20 || step % 2 == 0 {
            next(&mut ahead)
        } else {
            None
        };
        if let Some((_, advances)) = &minibatch {
            behind.observe(OriginId(1), advances);
        }
        let other = if step < 20 { None } else { next(&mut behind) };
        if let Some((_, advances)) = &other {
            ahead.observe(OriginId(2), advances);
        }
        for plan in [&ahead, &behind] {
            most = most.max(plan.board.entries() + plan.queue.len());
        }
        if ahead.is_complete() && behind.is_complete() {
            break;
        }
    }
    // For each shard one epoch span of done epochs, one after it, and one of the other slot's claims at the end.
    assert!(most < 3 * 32 + 32, "a plan holds {most} entries");
}

/// A worker that joins after a million epochs finds its place at once, and cursors for all of them take little memory.
#[test]
fn a_late_worker_goes_on_after_a_million_epochs() {
    const EPOCHS: u32 = 1_000_000;
    let mut plan = SamplePlan::new(shared(vec![0; 40], 10, EPOCHS, 8), 3).unwrap();
    let lengths = plan.shared.shard_plan(0);
    let mut cursors = Cursors::default();
    for shard in 0..lengths.shard_count() {
        cursors.raise(EpochSpan {
            shard,
            first: 0,
            last: EPOCHS - 3,
            done: lengths.samples(shard).len() as u32,
        });
    }
    assert_eq!(cursors.samples_done(), u64::from(EPOCHS - 2) * 40);
    plan.skip_done(&cursors);
    let rest = all_minibatches(plan);
    assert_eq!(rest[0].1[0].shard.epoch, EPOCHS - 2);
    assert_eq!(samples(&rest).len(), 80);
}

#[test]
fn impossible_plans_are_refused() {
    let error = |slots, minibatch, slot| SamplePlan::new(shared(vec![0; 4], slots, 1, minibatch), slot).unwrap_err();
    assert_eq!(error(0, 1, 0), PlanError::NoSlots);
    assert_eq!(error(1, 0, 0), PlanError::EmptyMinibatch);
    let slots = SLOTS_MAX + 1;
    assert_eq!(error(slots, 1, 0), PlanError::TooManySlots(slots));
}

proptest! {
    #[test]
    fn a_minibatch_is_full_unless_it_ends_an_epoch(shared in shared_plans()) {
        let minibatches = all_minibatches(SamplePlan::new(shared.clone(), 0).unwrap());
        for (place, (indices, advances)) in minibatches.iter().enumerate() {
            let epoch = advances[0].shard.epoch;
            prop_assert!(advances.iter().all(|advance| advance.shard.epoch == epoch));
            let ends = minibatches.get(place + 1).is_none_or(|(_, next)| next[0].shard.epoch != epoch);
            prop_assert!(indices.len() == shared.minibatch || (ends && !indices.is_empty()));
        }
    }

    /// Tests the limit on shards per minibatch: many slots share few samples here, so that minibatches would take from
    /// many shards, claimed ones included.
    #[test]
    fn a_minibatch_takes_from_no_more_shards_than_it_may_and_nothing_is_lost(
        mut shared in shared_plans(),
        slots in 1usize..12,
        minibatch in 1usize..300,
        rooms in prop::collection::vec(1usize..70, 1..8),
    ) {
        (shared.slots, shared.minibatch) = (slots, minibatch);
        let total = shared.labels.len() * shared.epochs as usize;
        let mut plan = SamplePlan::new(shared, 0).unwrap();
        let mut rooms = rooms.into_iter().cycle();
        let (mut done, mut trained) = (Cursors::default(), 0);
        while let Some(room) = rooms.next()
            && let Some((indices, advances)) = next_within(&mut plan, room)
        {
            prop_assert!(advances.len() <= room);
            let new: u64 = advances.iter().map(|&advance| u64::from(done.advance(advance))).sum();
            prop_assert_eq!(new, indices.len() as u64);
            trained += indices.len();
        }
        prop_assert_eq!(trained, total);
        prop_assert!(plan.is_complete());
    }

    #[test]
    fn advances_count_exactly_the_samples_of_their_minibatch(shared in shared_plans()) {
        let mut reached = Cursors::default();
        for (indices, advances) in all_minibatches(SamplePlan::new(shared.clone(), 0).unwrap()) {
            let mut expected = Vec::new();
            for advance in advances {
                let before = reached.done(advance.shard);
                prop_assert!(reached.advance(advance) > 0);
                let plan = shared.shard_plan(advance.shard.epoch);
                let samples = plan.samples(advance.shard.shard);
                expected.extend_from_slice(&samples[before as usize..advance.done as usize]);
            }
            prop_assert_eq!(indices, expected);
        }
    }

    #[test]
    fn a_resumed_worker_goes_on_where_it_was(shared in shared_plans(), at in any::<prop::sample::Index>()) {
        let whole = all_minibatches(SamplePlan::new(shared.clone(), 0).unwrap());
        // The worker does not resume claims, because the cursors do not show that they were its own.
        let is_own = |(_, advances): &Minibatch| advances.iter().all(|advance| advance.shard.shard < SHARDS_PER_SLOT);
        let own = whole.iter().take_while(|minibatch| is_own(minibatch)).count();
        let (before, after) = whole.split_at(at.index(own + 1));
        let mut resumed = SamplePlan::new(shared, 0).unwrap();
        resumed.skip_done(&cursors(before));
        prop_assert_eq!(all_minibatches(resumed), after);
    }

    /// Tests that samples done by any other worker are skipped: another worker may have claimed shards from the middle
    /// of the queue.
    #[test]
    fn whatever_was_done_elsewhere_is_left_out(
        shared in shared_plans(),
        elsewhere in prop::collection::vec((0u32..4, 0u32..16, 0usize..20), 0..30),
        begun in 0usize..5,
    ) {
        let lengths: Vec<usize> = {
            let plan = shared.shard_plan(0);
            plan.shards_of(0).map(|shard| plan.samples(shard).len()).collect()
        };
        let mut plan = SamplePlan::new(shared.clone(), 0).unwrap();
        let first: Vec<Minibatch> = std::iter::from_fn(|| next(&mut plan)).take(begun).collect();
        let mut known = cursors(&first);
        for (epoch, shard, done) in elsewhere {
            if epoch < shared.epochs {
                let done = done.min(lengths[shard as usize]) as u32;
                known.advance(CursorAdvance { shard: ShardId { epoch, shard }, done });
            }
        }
        plan.skip_done(&known);
        let rest = all_minibatches(plan);

        // The plan heard nothing of the other slots, so it claimed their samples.
        let total = shared.labels.len() as u64 * u64::from(shared.epochs);
        prop_assert_eq!(known.samples_done() + samples(&rest).len() as u64, total);
        known.merge(&cursors(&rest));
        prop_assert_eq!(known.samples_done(), total);
    }
}
