//! A simulation of many exchanges in one thread, under a seeded storm: links break, on one side first; they lose,
//! repeat, reorder and delay messages; partitions come and go; nodes die, restart and join late; workers die; peers are
//! slow; logs are short; bits flip.
//!
//! After every event each replica must be the sum of exactly the batches that its frontier names, each made once; its
//! worker must hold the same weights; and memory must be within its limits. After the storm all survivors must agree,
//! and no batch that a survivor had applied may be lost. A failure prints its seed; `TAU_SIMULATION_SEED=n cargo test
//! -p tau-communicator simulation` replays it, `TAU_SIMULATION_SEEDS=n` sets the number of seeds, and
//! `TAU_SIMULATION_FROM=n` the first one.
//!
//! `world` holds the nodes and carries out their effects, `network` connects them, `storm` disturbs them, `calm`
//! follows the storm, and `checks` has the invariants.

mod calm;
mod checks;
mod network;
mod storm;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use protocol::ids::NodeId;

use super::{ReductionPath, Routing};
use crate::planted::{Bug, PLANTED};
use crate::seeds;
use world::{Traffic, World};

/// Number of random seeds with which each test simulates nodes that send every batch to all others.
const SEEDS: u64 = 1_800;
/// Number of random seeds with which each test simulates rounds that nodes add up. It is below `SEEDS` because such a
/// simulation takes four times as long as one of single batches.
const BUNDLED_SEEDS: u64 = 900;

/// Simulates a storm of random faults and the calm after it, from one seed. Returns the number of bundles (sums of a
/// round's batches) that were applied.
fn run(seed: u64, traffic: Traffic) -> u64 {
    let mut world = World::new(seed, traffic);
    let steps = 300 + world.random.below(700);
    for _ in 0..steps {
        world.storm_step();
    }
    let learned = world.learned();
    world.settle();
    world.check_agreement(&learned);
    world.bundles
}

/// Returns traffic in rounds that nodes add up, along a reduction path that the seed picks.
fn bundled(seed: u64) -> Traffic {
    Traffic::Bundled(match seed % 3 {
        0 => ReductionPath::Star,
        1 => ReductionPath::RingReduce,
        _ => ReductionPath::Ring,
    })
}

#[test]
fn survivors_agree_after_any_storm() {
    seeds::none_fails("survivors_agree", SEEDS, |seed| {
        run(seed, Traffic::Single(Routing::Mesh));
        Ok(())
    });
}

#[test]
fn survivors_agree_whichever_way_batches_go() {
    // The hub may be slow, cut off or dead for good: then batches must pass it by.
    let hub = NodeId(1);
    seeds::none_fails("whichever_way", SEEDS / 6, |seed| {
        run(seed, Traffic::Single(Routing::star(vec![hub])));
        Ok(())
    });
}

#[test]
fn survivors_agree_when_rounds_are_added_up_on_their_way() {
    let bundles = AtomicU64::new(0);
    let seeds = seeds::none_fails("added_up", BUNDLED_SEEDS, |seed| {
        bundles.fetch_add(run(seed, bundled(seed)), Ordering::Relaxed);
        Ok(())
    });
    let bundles = bundles.into_inner();
    println!("{bundles} bundles were applied");
    // With a single seed the storm may be too wild for any bundle.
    assert!(bundles > 0 || seeds == 1, "no round was bundled with any seed");
}

#[test]
fn planted_bugs_are_found() {
    let bugs = [
        (Bug::DroppedRepair, false),
        (Bug::DoubleApply, false),
        (Bug::WrongMerge, false),
        (Bug::NoMerge, false),
        (Bug::BundleAnywhere, true),
        (Bug::ForgottenOrigin, true),
        (Bug::ForgottenRound, true),
    ];
    for (bug, is_bundled) in bugs {
        let traffic = |seed| {
            if is_bundled {
                bundled(seed)
            } else {
                Traffic::Single(Routing::Mesh)
            }
        };
        PLANTED.set(Some(bug));
        let found = (0..100).find(|&seed| std::panic::catch_unwind(|| run(seed, traffic(seed))).is_err());
        PLANTED.set(None);
        println!("{bug:?} is found by seed {found:?}");
        assert!(found.is_some(), "none of 100 seeds finds the planted bug {bug:?}");
    }
}
