//! A simulation of whole nodes in one thread, under a seeded storm: run, roster, exchange and workers of each node,
//! with a network, disks and clients. Workers prepare slowly, die, hang and come back; nodes die, freeze, leave and
//! join; runs are started and stopped anywhere, two at once, at guests and at nodes that have just returned; links are
//! down for a while or for good; disks are full or hang; nodes find each other lying.
//!
//! Invariants at all times: a replica is the sum of exactly its batches; no node reports two results of one run; nodes
//! that end a run together end it with the same weights; no node drops an intact ledger. After the storm every run ends
//! on every living node within a time limit, and all nodes take part in the next run. A failure prints its history and
//! its seed; `TAU_SIMULATION_SEED=n cargo test -p tau-communicator whole_nodes` replays it.

mod network;
mod node;
mod scenarios;
mod sessions;
mod shell;
mod stages;
mod storm;
mod working;
mod world;

use protocol::reasons::{KeptWeights, RunFailure};
use std::collections::{BTreeMap, BTreeSet};

use protocol::ids::{NodeId, OriginId, RunId};
use protocol::weights::digest::Digest;
use protocol::wire::control::{Phase, Reply, RunResult};

use crate::planted::{Bug, PLANTED};
use crate::seeds;
use node::{Disk, Ending, Node};
use stages::Layers;
use storm::BOUND_SECONDS;
use worker::pipeline::planted as worker;
use world::{World, pair};

/// Number of random seeds with which each test run repeats the simulation.
const SEEDS: u64 = 900;
/// Seconds after the last fault within which each training worker must reach a further round. 30 of these seconds may
/// pass while workers wait for founders (the nodes with which the run began).
const ROUND_SECONDS: u64 = 45;
/// Maximum number of samples with which a run surely ends by itself within the time limit of a simulation.
const ENDS_BY_ITSELF: u64 = 420;
/// Number of seeds of which at least one must find each planted bug.
const PLANTED_SEEDS: u64 = 1_000;

/// Ways in which networks are cut into stages, for simulated pipelines.
const CUTS: [&str; 5] = [
    "groups=2,micro=2",
    "groups=3,micro=2,ahead=0",
    "groups=2,slices=2,micro=2",
    "groups=1,slices=2,micro=3",
    "groups=2,micro=1,ahead=2",
];
/// Number of random seeds with which each test run repeats the simulation of pipelines.
const PIPELINE_SEEDS: u64 = 180;
/// Seconds after the last fault until all nodes know which node holds each pipeline stage.
const HEARD_SECONDS: u64 = 10;
/// Number of seconds, counted from the end of `HEARD_SECONDS`, within which each pipeline whose workers are all running
/// must be complete.
const TOGETHER_SECONDS: u64 = 40;
/// Number of random seeds with which each test run repeats the simulation of modules, whose first weights nodes draw by
/// themselves.
const MODULE_SEEDS: u64 = 180;
/// Number of seeds of which at least one must find each bug planted in pipelines.
const PLANTED_PIPELINE_SEEDS: u64 = 200;

/// Checks the results of runs: each is complete, and nodes that ended a run together have the same weights.
fn check_results(world: &World) {
    let mut ended: BTreeMap<RunId, BTreeMap<NodeId, &RunResult>> = BTreeMap::new();
    for (&id, node) in &world.nodes {
        for (&run, outcome) in &node.ended {
            match outcome {
                Ok(result) => drop(ended.entry(run).or_default().insert(id, result)),
                Err(reason) => check_failure(id, node, run, reason),
            }
        }
    }
    for (run, results) in &ended {
        for (id, result) in results {
            let whole = world.layers.as_ref().map_or(0, Layers::samples);
            assert!(
                result.stop.is_some() || result.samples >= whole,
                "run {run} has ended at {id} by itself, with {} of {whole} samples",
                result.samples
            );
            let mut named = BTreeSet::new();
            let twice = result
                .participants
                .iter()
                .chain(&result.missing)
                .find(|name| !named.insert(*name));
            assert_eq!(twice, None, "the result of run {run} at {id} names a node twice");
            assert!(
                result.agree,
                "node {id} reports that replicas of run {run} differ, but all are sound"
            );
            let name = |node: &NodeId| world.nodes[node].info.name.clone();
            // Results name nodes, not processes: of several processes with one name, only the living one can be meant.
            let is_meant = |node: &NodeId| {
                let same = world.nodes.values().filter(|one| one.info.name == name(node));
                world.nodes[node].alive || same.count() == 1
            };
            let liars = world.accused.iter().filter(|(of, by, _)| of == run && by == id);
            for (_, _, liar) in liars.filter(|(_, _, liar)| is_meant(liar)) {
                let counted = result.participants.contains(&name(liar));
                assert!(
                    !counted,
                    "{id} has ended run {run} with {liar}, which it has found lying"
                );
            }
            // Both processes of a restarted node may have ended the run separately; the result means one of them.
            for named in result.participants.iter().filter(|named| **named != name(id)) {
                let of_name = world.nodes.values().filter(|one| one.info.name == *named);
                let took_part = of_name.filter(|one| one.took_part.contains(run));
                // The nodes of another stage may have ended the run separately, and each node counts the participants
                // that it has heard.
                let counts_the_same =
                    |theirs: &&&RunResult| world.layers.is_none() || theirs.participants == result.participants;
                let digests: Vec<Option<Digest>> = took_part
                    .map(|one| {
                        results
                            .get(&one.info.id)
                            .filter(counts_the_same)
                            .map(|theirs| theirs.digest)
                    })
                    .collect();
                assert!(
                    digests.contains(&None) || digests.contains(&Some(result.digest)),
                    "{id} has ended run {run} with {named}, but they have different weights"
                );
            }
        }
        let saved = world.nodes.values().any(|node| node.models.contains(run));
        assert!(saved, "run {run} has a result, but no node has its model");
    }
}

/// Checks that a failed run has left its replica on the node's disk, if the node took part and could write it.
fn check_failure(id: NodeId, node: &Node, run: RunId, reason: &RunFailure) {
    let had_nothing = !node.took_part.contains(&run) || matches!(reason, RunFailure::Excluded(_));
    let could_not = matches!(
        reason,
        RunFailure::NotSaved(KeptWeights::Lost(_) | KeptWeights::DiskHangs) | RunFailure::NoPipeline { .. }
    );
    let kept = node.checkpoints.contains_key(&run) || could_not;
    assert!(
        had_nothing || kept,
        "{id} has dropped the ledger of run {run}: {reason}"
    );
}

/// Checks the invariants of every live node: its replica and its workers' weights are the sum of exactly its batches,
/// and it does not train a stage that another node has taken over.
fn check_nodes(world: &World) {
    for (id, node) in world.nodes.iter().filter(|(_, node)| node.alive) {
        let Some(open) = &node.exchange else {
            continue;
        };
        let status = node.core.status(world.time());
        assert!(
            !open.topology().is_replaced(*id) || status.is_none_or(|status| status.phase != Phase::Training),
            "node {id} trains a stage that another node has taken over"
        );
        let ledger = open.ledger();
        ledger.audit().unwrap();
        if open.core.exchange().is_newcomer() {
            let seats = open.core.seats();
            assert!(
                seats.is_empty(),
                "node {id} has seated a worker without the run's weights"
            );
            // Its ledger holds the weights that it drew. Only a node that has read a checkpoint of its own has batches,
            // and those are checked like any replica.
            if ledger.batches() == 0 {
                continue;
            }
        }
        let mut expected = ledger.initial();
        if open.core.plan().job.nodes_draw_weights() {
            assert_eq!(
                expected,
                open.core.plan().first,
                "node {id} begins with other weights than the run"
            );
        }
        for (origin, sequence) in ledger.frontier().iter() {
            let sum: Option<&Digest> = world.made[&origin].get(sequence as usize);
            expected += *sum.unwrap_or_else(|| panic!("node {id} has applied a batch that no worker made"));
        }
        assert_eq!(
            ledger.digest(),
            expected,
            "the ledger of node {id} is not the sum of its batches"
        );
        for key in open.core.seats().keys() {
            if let Some(training) = node.workers.get(key).and_then(|worker| worker.training.as_ref()) {
                assert_eq!(
                    training.counts,
                    ledger.counts(),
                    "the weights of a worker of node {id} differ from the node's ledger"
                );
            }
        }
    }
}

/// Checks that each stage of a pipeline is trained by one node only. Called when all nodes have heard of each other.
/// Nodes that have begun to end a run count no more, because they admit no others.
fn check_stages(world: &World) {
    let mut holders = BTreeMap::new();
    let trains = |node: &Node| {
        let status = node.core.status(world.time());
        node.alive && status.is_some_and(|status| status.phase == Phase::Training)
    };
    for (&id, node) in world.nodes.iter().filter(|(_, node)| trains(node)) {
        let Some(open) = &node.exchange else {
            continue;
        };
        let place = open
            .topology()
            .place(id)
            .map(|place| (open.run, place.pipeline, place.stage));
        if let Some(place) = place {
            let other = holders.insert(place, id);
            assert_eq!(other, None, "{id} holds the same stage of a pipeline: {place:?}");
        }
    }
}

/// Describes the runs that have not ended, for the report of a failure.
fn describe(world: &World) -> String {
    let runs: Vec<String> = world
        .alive()
        .iter()
        .filter_map(|id| Some((id, world.nodes[id].core.status(world.time())?)))
        .filter(|(_, status)| status.outcome.is_none())
        .map(|(id, status)| {
            let phase = status.phase.text();
            let state = world.nodes[id].core.describe_run();
            let exchange = world.nodes[id]
                .exchange
                .as_ref()
                .map(|open| open.core.exchange().describe());
            let exchange = exchange.unwrap_or_default();
            format!(
                "{id} is {phase} in run {} and waits: {:?}\n{state}\n{exchange}",
                status.run, status.waiting
            )
        })
        .collect();
    runs.join("\n")
}

/// Ends the storm of random faults and checks that every run ends and that all nodes take part in the next one.
fn check_calm(world: &mut World) {
    world.calm_down();
    world.until(3, |_| false);
    if world.layers.is_some() {
        world.until(HEARD_SECONDS, |_| false);
        check_stages(world);
        let come_together = world.until(TOGETHER_SECONDS, |world| world.apart().is_empty());
        let apart = world.apart();
        assert!(
            come_together,
            "pipelines of {apart:?} do not come together:\n{}",
            describe(world)
        );
    }
    if world.in_rounds.is_some() {
        check_rounds(world);
    }
    // Some runs are left to end by themselves with all samples trained, because a stop would make workers emit samples
    // that they hold back.
    if world.samples <= ENDS_BY_ITSELF && world.in_rounds.is_none() && world.random.below(2) == 0 {
        let trained = |world: &World| world.alive().iter().all(|id| world.trains(*id).is_none());
        assert!(
            world.until(BOUND_SECONDS, trained),
            "a run does not end, although its workers had time to train all samples:\n{}",
            describe(world)
        );
    }
    // Runs that would go on for long are stopped, each at one of its nodes.
    let going: BTreeMap<RunId, NodeId> = world
        .alive()
        .into_iter()
        .filter_map(|id| Some((world.nodes[&id].run()?, id)))
        .collect();
    let together: Vec<(RunId, NodeId)> = world.alive().into_iter().filter_map(|id| world.trains(id)).collect();
    for (run, &at) in &going {
        let others = world.nodes.values().filter(|node| node.info.id != at);
        let alone = !others.clone().any(|node| node.alive && node.run() == Some(*run));
        let says_so = |node: &Node| node.beats.iter().any(|beat| beat.run == *run);
        let ended = others
            .clone()
            .any(|node| node.alive && node.ended.get(run).is_some_and(Result::is_ok) && says_so(node));
        // A node that returns to a run that the others have ended learns that by itself, if their beats still say so.
        if !(alone && ended) {
            world.ask_to_stop(at);
        }
    }
    // Nodes do not wait for each other's disks; a node whose own disk hangs ends when the disk answers.
    let over = |world: &World| {
        let ended = |id: &NodeId| world.nodes[id].run().is_none() || world.nodes[id].disk == Disk::Hung;
        world.alive().iter().all(ended)
    };
    let mut ended = world.until(BOUND_SECONDS, over);
    // The stages of a model are useful only together, so nodes wait long for each other's disks, and must name that.
    if !ended && world.layers.is_some() {
        ended = world.alive().iter().any(|id| world.nodes[id].disk == Disk::Hung);
        check_waiting(world);
    }
    for node in world.nodes.values_mut().filter(|node| node.disk == Disk::Hung) {
        node.disk = Disk::Sound;
    }
    ended = ended && world.until(BOUND_SECONDS, over);
    assert!(ended, "not all runs have ended:\n{}", describe(world));
    check_results(world);
    if world.accused.is_empty() {
        check_together(world, &together);
    }
    for node in world.nodes.values_mut() {
        node.disk = Disk::Sound;
    }
    world.blocked.clear();
    world.rejecting.clear();
    world.samples = world.samples.min(400);
    if let Some(layers) = &mut world.layers {
        layers.limit(80);
    }
    // A search for checkpoints that began in the storm may have started a run of its own meanwhile.
    let searching = |world: &World| world.alive().iter().all(|id| !world.nodes[id].core.is_searching());
    assert!(world.until(30, searching), "a search for a checkpoint does not end");
    world.until(6, |_| false);
    assert!(
        world.until(BOUND_SECONDS, over),
        "a run that began after the storm does not end:\n{}",
        describe(world)
    );
    world.until(6, |_| false);
    check_next_run(world);
}

/// Checks that all nodes take part in a run that starts after the storm of faults.
fn check_next_run(world: &mut World) {
    let alive = world.alive();
    // Nodes that do not fill a whole pipeline are spare.
    let stages = world.layers.as_ref().map_or(1, Layers::stages);
    let taking_part = alive.len() / stages * stages;
    if taking_part == 0 {
        return;
    }
    // Long enough for nodes that drew other first weights to catch up before the run ends.
    if world.draws > 0 {
        world.samples = 400;
    }
    let at = world.pick(&alive);
    let run = world.start(at, false);
    let is_spare = |outcome: &Result<RunResult, RunFailure>| matches!(outcome, Err(RunFailure::Spare));
    let takes_part = |world: &World, id: &NodeId| {
        let outcome = world.nodes[id].ended.get(&run);
        outcome.is_some_and(|outcome| stages == 1 || !is_spare(outcome))
    };
    let ended_there = |world: &World| world.alive().iter().filter(|id| takes_part(world, id)).count();
    let ended = world.until(120, |world| ended_there(world) == taking_part);
    let replies: Vec<&Reply> = world.nodes[&at].replies.values().rev().take(1).collect();
    let states: Vec<String> = world
        .alive()
        .iter()
        .map(|id| world.nodes[id].core.describe_run())
        .collect();
    assert!(ended, "the next run does not end: {replies:?}\n{}", states.join("\n"));
    for id in world.alive() {
        if !takes_part(world, &id) {
            continue;
        }
        let result = world.nodes[&id].ended[&run].as_ref();
        let result = result.unwrap_or_else(|reason| panic!("{id} failed in the next run: {reason}"));
        assert_eq!(
            result.participants.len(),
            taking_part,
            "the next run lacks participants: {result:?}"
        );
    }
    check_results(world);
}

/// Checks that every node whose run has not ended names the reason for which it waits.
fn check_waiting(world: &World) {
    for id in world.alive().iter().filter(|id| world.nodes[id].run().is_some()) {
        let status = world.nodes[id].core.status(world.time());
        let waits = status.is_none_or(|status| !status.waiting.is_empty());
        assert!(waits, "{id} waits for nothing that it names:\n{}", describe(world));
    }
}

/// Checks that each training worker reaches a further round within `ROUND_SECONDS`.
fn check_rounds(world: &mut World) {
    let trains = |world: &World| -> BTreeMap<OriginId, u64> {
        let nodes = world.nodes.values().filter(|node| node.runs());
        let workers = nodes
            .flat_map(|node| node.workers.values())
            .filter(|worker| !worker.hangs);
        let trainings = workers.filter_map(|worker| worker.training.as_ref());
        let train = trainings.filter(|training| training.ending == Ending::Nothing && !training.closed);
        train.map(|training| (training.origin, training.sequence)).collect()
    };
    let before = trains(world);
    let stuck = |world: &World| {
        let now = trains(world).into_iter();
        now.filter(|(origin, sequence)| before.get(origin) == Some(sequence))
            .count()
    };
    let moved = world.until(ROUND_SECONDS, |world| stuck(world) == 0);
    assert!(moved, "{} workers wait for ever for others' rounds", stuck(world));
}

/// Checks that nodes that trained together at the end of the storm of faults, and were up to date, end the run
/// together.
fn check_together(world: &World, together: &[(RunId, NodeId)]) {
    for (run, id) in together {
        let Some(Ok(result)) = world.nodes[id].ended.get(run) else {
            continue;
        };
        let members: Vec<NodeId> = together.iter().filter(|(of, _)| of == run).map(|(_, id)| *id).collect();
        // Members without a link hear of each other over a third node, if both reach one.
        let linked = |a: NodeId, b: NodeId| !world.blocked.contains(&pair(a, b));
        let reached = |other: &NodeId| members.iter().any(|&over| linked(*id, over) && linked(over, *other));
        for other in members.iter().filter(|other| *other != id && reached(other)) {
            let ended = world.nodes[other].ended.get(run).is_some_and(Result::is_ok);
            let counted = result.participants.contains(&world.nodes[other].info.name);
            let states = [id, other].map(|id| world.nodes[id].core.describe_run()).join("\n");
            assert!(
                !ended || counted,
                "{id} has ended run {run} without {other}, which is alive\n{states}"
            );
        }
    }
}

fn run_storm(world: &mut World) {
    let first = world.alive()[0];
    world.start(first, true);
    if world.layers.is_some() && world.samples > ENDS_BY_ITSELF {
        world.vacate();
    }
    let steps = 200 + world.random.below(1400);
    for _ in 0..steps {
        world.storm_step();
    }
    check_calm(world);
}

/// Runs the simulation with one seed. An error is the failure with the history before it.
fn run(seed: u64) -> Result<(), String> {
    run_in(World::cluster(seed, 2 + (seed % 4) as usize))
}

/// Runs the simulation of pipelines with one seed. An error is the failure with the history before it.
fn run_pipelines(seed: u64) -> Result<(), String> {
    run_in(World::of_pipelines(seed, CUTS[(seed % CUTS.len() as u64) as usize]))
}

/// Runs the simulation of modules with one seed. An error is the failure with the history before it.
fn run_modules(seed: u64) -> Result<(), String> {
    // If only one draw is possible, all nodes have the same first weights; of 2^20, nearly every node draws its own.
    let draws = [2, 3, 1 << 20, 1][(seed / 5 % 4) as usize];
    run_in(World::of_modules(seed, 2 + (seed % 4) as usize, draws))
}

fn run_in(mut world: World) -> Result<(), String> {
    worker::ALL_ARE_HONEST.set(true);
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_storm(&mut world)));
    ran.map_err(|panic| format!("{}\n{}", world.trace.join("\n"), seeds::message_of(&*panic)))
}

#[test]
fn whole_nodes_survive_any_storm() {
    seeds::none_fails("whole_nodes", SEEDS, run);
}

#[test]
fn pipelines_survive_any_storm() {
    seeds::none_fails("pipelines", PIPELINE_SEEDS, run_pipelines);
}

#[test]
fn modules_survive_any_storm() {
    seeds::none_fails("modules", MODULE_SEEDS, run_modules);
}

#[test]
fn bugs_planted_in_the_run_are_found() {
    let bugs = [
        Bug::ForgottenGuest,
        Bug::LostStop,
        Bug::BegunTwice,
        Bug::EndedAlone,
        Bug::EmptySeatUntold,
        Bug::PrivateGiveUp,
        Bug::StopAtGuestAborts,
        Bug::EndUntold,
        Bug::StopUnacted,
        Bug::OneSideDials,
        Bug::DirectLifeOnly,
        Bug::PrivateQuarantine,
        Bug::RefusedIsDead,
        Bug::KeepsLastCursors,
        Bug::LeavesAtOnce,
        Bug::UnreachedIsDead,
        Bug::FormerLifeMissing,
        Bug::WaitsForTheDead,
    ];
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut found = Vec::new();
    for bug in bugs {
        PLANTED.set(Some(bug));
        found.push((format!("{bug:?}"), (0..PLANTED_SEEDS).find(|&seed| run(seed).is_err())));
        PLANTED.set(None);
    }
    PLANTED.set(Some(Bug::OwnFirstWeights));
    let seed = (0..PLANTED_SEEDS).find(|&seed| run_modules(seed).is_err());
    found.push((format!("{:?}", Bug::OwnFirstWeights), seed));
    PLANTED.set(None);
    std::panic::set_hook(hook);
    check_found(&found);
}

#[test]
fn bugs_planted_in_pipelines_are_found() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let first_failure = || (0..PLANTED_PIPELINE_SEEDS).find(|&seed| run_pipelines(seed).is_err());
    let mut found = Vec::new();
    for bug in [Bug::VacancyFilledTwice, Bug::SendsToTheReplaced] {
        PLANTED.set(Some(bug));
        found.push((format!("{bug:?}"), first_failure()));
        PLANTED.set(None);
    }
    for bug in [worker::Bug::MixesGenerations, worker::Bug::EndsUntold] {
        worker::PLANTED.set(Some(bug));
        found.push((format!("{bug:?}"), first_failure()));
        worker::PLANTED.set(None);
    }
    std::panic::set_hook(hook);
    check_found(&found);
}

/// Checks that each planted bug was found by some seed.
fn check_found(found: &[(String, Option<u64>)]) {
    for (bug, seed) in found {
        println!("{bug}: found by seed {seed:?}");
    }
    let missed: Vec<_> = found.iter().filter(|(_, seed)| seed.is_none()).collect();
    assert!(missed.is_empty(), "no seed finds the planted bugs {missed:?}");
}
