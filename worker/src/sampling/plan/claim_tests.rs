//! Tests of the choice of shards when slots differ in speed or lose their workers.

use super::tests::{next, shared};
use super::*;

const OTHER: OriginId = OriginId(2);
const THIRD: OriginId = OriginId(3);

/// Returns the plan of slot 0 of two, which has trained all its own shards; each slot has 16 shards of four samples an
/// epoch.
fn idle(epochs: u32) -> SamplePlan {
    let mut plan = SamplePlan::new(shared(vec![0; 128], 2, epochs, 4), 0).unwrap();
    for step in 0..16 * epochs {
        let shard = advance_of(&mut plan).unwrap().shard;
        assert_eq!((shard.epoch, shard.shard), (step / 16, step % 16));
    }
    plan
}

/// Takes the next minibatch from the plan and returns the only shard that it advances.
fn advance_of(plan: &mut SamplePlan) -> Option<CursorAdvance> {
    let (_, advances) = next(plan)?;
    assert_eq!(advances.len(), 1);
    Some(advances[0])
}

/// Takes all remaining minibatches from the plan and returns the shards that they advance, as epoch and number.
fn shards(plan: &mut SamplePlan) -> Vec<(u32, u32)> {
    let mut shards: Vec<(u32, u32)> = std::iter::from_fn(|| next(plan))
        .flat_map(|(_, advances)| advances)
        .map(|advance| (advance.shard.epoch, advance.shard.shard))
        .collect();
    shards.dedup();
    shards
}

const fn advance(epoch: u32, shard: u32, done: u32) -> CursorAdvance {
    let shard = ShardId { epoch, shard };
    CursorAdvance { shard, done }
}

#[test]
fn an_idle_slot_claims_from_the_end_of_the_slowest() {
    let mut plan = idle(2);
    plan.observe(OTHER, &[advance(0, 16, 4), advance(0, 17, 2)]);
    let mut expected: Vec<(u32, u32)> = (16..32).rev().map(|shard| (1, shard)).collect();
    expected.extend((18..32).rev().map(|shard| (0, shard)));
    assert_eq!(shards(&mut plan), expected);
    // A shard that the other slot has begun is left to it, even if this one has to wait.
    assert!(!plan.is_complete());
    plan.observe(OTHER, &[advance(0, 17, 4)]);
    assert!(plan.is_complete());
    assert_eq!(next(&mut plan), None);
}

#[test]
fn claims_from_the_living_may_have_to_wait_until_a_batch_has_left() {
    let patient = SharedPlan {
        claims_after_batches: true,
        ..shared(vec![0; 128], 2, 1, 6)
    };
    let mut plan = SamplePlan::new(patient, 0).unwrap();
    // The last minibatch of its own is not filled up with another's samples.
    let own = shards(&mut plan);
    assert!(own.iter().all(|&(_, shard)| shard < 16) && plan.ends_epoch());
    assert_eq!(next(&mut plan), None);
    // By then, others have told which shards they have begun.
    plan.observe(OTHER, &[advance(0, 31, 2)]);
    plan.batch_left();
    let (_, claimed) = next(&mut plan).unwrap();
    assert_eq!((claimed[0].shard.shard, claimed.len()), (30, 1));
    assert!(plan.ends_epoch());
    assert_eq!(next(&mut plan), None);
    // Shards that the dead left need not wait, because no other slot can take them.
    plan.set_slot_alive(1, false);
    assert!(next(&mut plan).is_some());
}

#[test]
fn of_what_the_dead_left_two_that_do_not_hear_of_each_other_take_different_shards() {
    let claimed = [0, 1].map(|slot| {
        let patient = SharedPlan {
            claims_after_batches: true,
            ..shared(vec![0; 192], 3, 1, 4)
        };
        let mut plan = SamplePlan::new(patient, slot).unwrap();
        plan.set_slot_alive(2, false);
        let of_dead = shards(&mut plan).into_iter().filter(|(_, shard)| *shard >= 32);
        let of_dead: BTreeSet<(u32, u32)> = of_dead.collect();
        // A batch leaves before the slot takes a shard that another may have.
        plan.batch_left();
        assert!(next(&mut plan).is_some());
        of_dead
    });
    assert!(claimed[0].is_disjoint(&claimed[1]), "{claimed:?}");
    let both: usize = claimed.iter().map(BTreeSet::len).sum();
    assert_eq!(both, 16, "{claimed:?}");
}

#[test]
fn the_slowest_is_the_slot_with_most_left_to_begin() {
    let mut plan = SamplePlan::new(shared(vec![0; 256], 4, 1, 64), 2).unwrap();
    assert!(next(&mut plan).is_some());
    let begun: Vec<CursorAdvance> = [(0, 5), (16, 9), (48, 4)]
        .into_iter()
        .flat_map(|(first, count)| (first..first + count).map(|shard| advance(0, shard, 1)))
        .collect();
    plan.observe(OTHER, &begun);
    let (_, advances) = next(&mut plan).unwrap();
    let owners: Vec<u32> = advances.iter().map(|advance| advance.shard.shard / 16).collect();
    assert_eq!(&owners[..4], [3, 3, 0, 3]);
    assert_eq!(owners.iter().filter(|&&owner| owner == 1).count(), 2);
}

#[test]
fn idle_slots_claim_different_shards_and_not_what_the_owner_comes_to_next() {
    let shared = shared(vec![0; 15 * 16], 15, 1, 1);
    let mut claimed: Vec<u32> = (0..14)
        .map(|slot| {
            let mut plan = SamplePlan::new(shared.clone(), slot).unwrap();
            let others = (0..14 * 16).map(|shard| advance(0, shard, 1));
            plan.observe(OTHER, &others.collect::<Vec<_>>());
            advance_of(&mut plan).unwrap().shard.shard
        })
        .collect();
    claimed.sort_unstable();
    claimed.dedup();
    assert_eq!(claimed.len(), 14);
    assert!(!claimed.contains(&(14 * 16)));
}

#[test]
fn what_others_claimed_of_a_slot_is_left_to_them_unless_they_die() {
    let mut plan = SamplePlan::new(shared(vec![0; 128], 2, 1, 4), 0).unwrap();
    plan.observe(OTHER, &[advance(0, 1, 4), advance(0, 2, 1)]);
    plan.observe(THIRD, &[advance(0, 3, 3)]);
    plan.set_origin_alive(THIRD, false);
    assert_eq!(advance_of(&mut plan), Some(advance(0, 0, 4)));
    assert_eq!(next(&mut plan).unwrap().1, [advance(0, 3, 4), advance(0, 4, 3)]);
    // Shard 2 is left to the other origin until its place in the queue has passed.
    assert_eq!(shards(&mut plan).len(), 12 + 16);
    plan.set_origin_alive(OTHER, false);
    assert_eq!(advance_of(&mut plan), Some(advance(0, 2, 4)));
    assert!(plan.is_complete());
}

#[test]
fn of_two_that_begin_a_shard_in_the_same_round_one_goes_on() {
    let meet = |own: OriginId, other: OriginId, done: u32| {
        let long = shared(vec![0; 320], 2, 1, 4);
        let mut plan = SamplePlan::new(long, 0).unwrap().of_origin(own);
        assert_eq!(advance_of(&mut plan), Some(advance(0, 0, 4)));
        plan.observe(other, &[advance(0, 0, done)]);
        plan
    };
    for (own, other, done) in [(OTHER, THIRD, 3), (OTHER, THIRD, 4), (THIRD, OTHER, 3)] {
        let next = advance_of(&mut meet(own, other, done));
        assert_eq!(
            next,
            Some(advance(0, 0, 8)),
            "{own} is further, or the lower of two abreast: {done}"
        );
    }
    for (own, other, done) in [(OTHER, THIRD, 6), (THIRD, OTHER, 4), (THIRD, OTHER, 6)] {
        let mut plan = meet(own, other, done);
        let next = advance_of(&mut plan);
        assert_eq!(
            next,
            Some(advance(0, 1, 4)),
            "{own} is behind, or the higher of two abreast: {done}"
        );
        plan.set_origin_alive(other, false);
        assert!(
            shards(&mut plan).contains(&(0, 0)),
            "a dead origin's shard is taken over"
        );
    }
}

#[test]
fn what_the_dead_began_is_claimed_last_and_where_they_left_it() {
    let mut plan = idle(1);
    plan.observe(OTHER, &[advance(0, 16, 1)]);
    plan.set_origin_alive(OTHER, false);
    // The dead origin's last batch arrives over other nodes.
    plan.observe(OTHER, &[advance(0, 16, 3), advance(0, 17, 3)]);
    let claimed = shards(&mut plan);
    assert_eq!(claimed.len(), 16);
    assert_eq!(claimed[14..], [(0, 16), (0, 17)]);
    assert!(plan.is_complete());
}

#[test]
fn late_batches_of_the_dead_do_not_free_what_the_living_took_over() {
    let mut plan = idle(1);
    plan.observe(OTHER, &[advance(0, 16, 1)]);
    plan.set_origin_alive(OTHER, false);
    plan.observe(THIRD, &[advance(0, 16, 2)]);
    plan.observe(OTHER, &[advance(0, 16, 3)]);
    assert!(!shards(&mut plan).contains(&(0, 16)));
    plan.set_origin_alive(THIRD, false);
    assert_eq!(advance_of(&mut plan), Some(advance(0, 16, 4)));
}

#[test]
fn all_unfinished_shards_of_a_slot_without_a_worker_are_free() {
    let mut plan = idle(1);
    plan.skip_done(&Cursors::from(vec![advance(0, 16, 1)]));
    plan.observe(OTHER, &[advance(0, 17, 1)]);
    assert_eq!(shards(&mut plan).len(), 14);
    plan.set_slot_alive(1, false);
    assert_eq!(shards(&mut plan), [(0, 16), (0, 17)]);
    assert!(plan.is_complete());
}

#[test]
fn a_slot_without_a_worker_comes_after_those_with_one() {
    let mut plan = SamplePlan::new(shared(vec![0; 192], 3, 1, 4), 0).unwrap();
    plan.set_slot_alive(1, false);
    plan.observe(OTHER, &[advance(0, 32, 4)]);
    let claimed: Vec<u32> = shards(&mut plan)[16..].iter().map(|&(_, shard)| shard / 16).collect();
    assert_eq!(claimed, [[2; 15].as_slice(), &[1; 16]].concat());
}

#[test]
fn a_worker_that_comes_back_keeps_what_its_slot_began() {
    let mut plan = idle(1);
    plan.skip_done(&Cursors::from(vec![advance(0, 16, 1)]));
    plan.set_slot_alive(1, false);
    plan.set_slot_alive(1, true);
    assert_eq!(shards(&mut plan).len(), 15);
    assert!(!plan.is_complete());
}

#[test]
fn nobody_talks_a_slot_out_of_its_own_worker() {
    let mut plan = idle(1);
    plan.set_slot_alive(0, false);
    plan.set_slot_alive(2, false);
    plan.set_slot_alive(2, true);
    assert_eq!(shards(&mut plan).len(), 16);
}

#[test]
fn of_a_double_claim_each_goes_on_where_either_is() {
    let mut plan = SamplePlan::new(shared(vec![0; 160], 1, 1, 2), 0).unwrap();
    assert_eq!(advance_of(&mut plan), Some(advance(0, 0, 2)));
    plan.observe(OTHER, &[advance(0, 0, 5)]);
    assert_eq!(advance_of(&mut plan), Some(advance(0, 0, 7)));
    // A shard that the other has completed is no reason to wait.
    plan.observe(OTHER, &[advance(0, 0, 10)]);
    assert_eq!(advance_of(&mut plan), Some(advance(0, 1, 2)));
}

/// Tests late joiners (guests), which have no samples of their own, claim shards all the time, and hear late of the
/// others' claims.
#[test]
fn guests_rarely_train_the_same() {
    const LATE: usize = 10;
    const STEPS: usize = 2000;
    for epochs in [20, 1000] {
        let shared = shared(vec![0; 6 * 16 * 8], 6, epochs, 8);
        // Three slots with samples of their own, and three guests, whose slots are far apart.
        let slots = [0, 1, 2, 6 + 52_711, 6 + 11_937, 6 + 200_033];
        let plan = |&slot: &usize| SamplePlan::new(shared.clone(), slot).unwrap();
        let mut plans: Vec<SamplePlan> = slots.iter().map(plan).collect();
        let mut made: Vec<Vec<CursorAdvance>> = Vec::new();
        let mut cursors = Cursors::default();
        let mut trained = 0;
        for step in 0..STEPS.min(epochs as usize * 60) {
            let who = step % plans.len();
            let (samples, advances) = next(&mut plans[who]).unwrap();
            trained += samples.len() as u64;
            for &advance in &advances {
                cursors.raise(advance.into());
            }
            made.push(advances);
            let Some(heard) = step.checked_sub(LATE) else {
                continue;
            };
            let origin = OriginId((heard % plans.len()) as u64);
            let others = plans
                .iter_mut()
                .enumerate()
                .filter(|(other, _)| *other != heard % slots.len());
            others.for_each(|(_, plan)| plan.observe(origin, &made[heard]));
        }
        let repeated = trained - cursors.samples_done();
        assert!(
            repeated * 100 <= trained,
            "{epochs} epochs: {repeated} of {trained} samples were trained twice"
        );
    }
}

#[test]
fn who_is_no_trainer_claims_nothing_until_a_lower_slot_is_lost() {
    let one_trainer = SharedPlan {
        trainers: Trainers::AtMost(1),
        founders: 3,
        ..shared(vec![0; 64], 1, 2, 4)
    };
    let plan = |slot| SamplePlan::new(one_trainer.clone(), slot).unwrap();
    assert_eq!(shards(&mut plan(0)).len(), 32, "the only trainer must train all shards");
    let mut second = plan(1);
    let mut third = plan(2);
    assert_eq!((next(&mut second), next(&mut third)), (None, None));
    for reserve in [&mut second, &mut third] {
        reserve.set_slot_alive(0, false);
        reserve.set_origin_alive(OTHER, false);
    }
    assert_eq!(next(&mut third), None, "slot 1 must take over before slot 2");
    assert!(next(&mut second).is_some());
    // A worker that comes back goes on as the trainer.
    second.set_slot_alive(0, true);
    let rest_of_shard = advance_of(&mut second);
    assert!(rest_of_shard.is_none(), "{rest_of_shard:?}");
    third.set_slot_alive(1, false);
    assert!(next(&mut third).is_some());
    // A guest trains when all founders are lost.
    let mut guest = plan(70_000);
    (0..2).for_each(|slot| guest.set_slot_alive(slot, false));
    assert_eq!(next(&mut guest), None);
    guest.set_slot_alive(2, false);
    assert!(next(&mut guest).is_some());
}

#[test]
fn claimers_that_go_in_step_claim_different_shards() {
    // Slots 0 and 1 complete their own samples at the same moment, and divide those of slot 2, which is dead.
    let mut plans = [0, 1].map(|slot| SamplePlan::new(shared(vec![0; 192], 3, 1, 4), slot).unwrap());
    let mut trained = Vec::new();
    loop {
        let advances: Vec<Option<CursorAdvance>> = plans.iter_mut().map(advance_of).collect();
        for (slot, advance) in advances.iter().enumerate() {
            let Some(advance) = advance else { continue };
            trained.push(advance.shard.shard);
            plans[1 - slot].observe(OriginId(slot as u64), &[*advance]);
        }
        for plan in &mut plans {
            plan.set_slot_alive(2, false);
        }
        if advances.iter().all(Option::is_none) {
            break;
        }
    }
    // Two claimers that hear of each other only at the end divide two of three shards without training one twice.
    let unheard = [0, 1].map(|slot| {
        let mut plan = SamplePlan::new(shared(vec![0; 192], 3, 1, 4), slot).unwrap();
        plan.set_slot_alive(2, false);
        let claimed = shards(&mut plan).into_iter().map(|(_, shard)| shard);
        claimed.filter(|shard| *shard >= 32).take(5).collect::<BTreeSet<u32>>()
    });
    assert!(unheard[0].is_disjoint(&unheard[1]), "{unheard:?}");
    let all = trained.len();
    trained.sort_unstable();
    trained.dedup();
    assert_eq!(trained, (0..48).collect::<Vec<_>>());
    assert!(all <= 48 + 1, "{all} shards were trained instead of 48");
}
