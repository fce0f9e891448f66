//! Many nodes in one thread, under a seeded storm: links break, on one side first; they lose, repeat, reorder and delay;
//! partitions come and go; nodes die, start again and join late; workers die; peers are slow; logs are short; bits flip.
//!
//! At every step, whatever happened: each replica is the sum of exactly the batches that its frontier names, each made
//! once; its worker holds the same; memory is within its limits. When the storm is over, all survivors must agree, and
//! nothing that a survivor had learned may be lost. A failure prints its seed; `TAU_SIMULATION_SEED=n cargo test -p
//! tau-communicator simulation` replays it, `TAU_SIMULATION_SEEDS=n` runs the first n, and `TAU_SIMULATION_FROM=n` others.
//!
//! `world` is the nodes and what they carry out; `network` is what lies between them; `storm` is what befalls them, and
//! `calm` what comes after; `checks` is what must hold.

mod calm;
mod checks;
mod network;
mod storm;
mod world;

use protocol::ids::NodeId;

use super::Routing;
use super::planted::{Bug, PLANTED};
use crate::seeds;
use world::World;

/// Seeds that every test run goes through.
const SEEDS: u64 = 10_000;

fn run(seed: u64, routing: Routing) {
    let mut world = World::new(seed, routing);
    let steps = 300 + world.random.below(700);
    for _ in 0..steps {
        world.storm_step();
    }
    let learned = world.learned();
    world.settle();
    world.check_agreement(&learned);
}

#[test]
fn survivors_agree_after_any_storm() {
    seeds::none_fails("survivors_agree", SEEDS, |seed| {
        run(seed, Routing::Mesh);
        Ok(())
    });
}

#[test]
fn survivors_agree_whichever_way_batches_go() {
    // The hub may be slow, cut off or dead for good: then batches go past it.
    let hub = NodeId(1);
    seeds::none_fails("whichever_way", SEEDS / 10, |seed| {
        run(seed, Routing::Star { hub });
        Ok(())
    });
}

#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::DroppedRepair, Bug::DoubleApply, Bug::WrongMerge, Bug::NoMerge] {
        PLANTED.set(Some(bug));
        let found = (0..100).filter(|&seed| std::panic::catch_unwind(|| run(seed, Routing::Mesh)).is_err());
        let found = found.count();
        PLANTED.set(None);
        println!("{found} of 100 seeds find {bug:?}");
        assert!(found > 0, "{bug:?} is not found");
    }
}
