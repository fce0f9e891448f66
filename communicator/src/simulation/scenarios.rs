//! Faults that were once found in real clusters, each as a scenario. The numbers are those of the list in which they
//! were reported.

use protocol::reasons::Excluded;
use protocol::reasons::waiting::WaitingFor;
use std::time::Duration;

use protocol::ids::{NodeId, RunId};
use protocol::stats::WorkerStats;
use protocol::weights::digest::Digest;
use protocol::wire::attach::{FailureCause, FromWorker};
use protocol::wire::control::{Phase, Reply};
use protocol::wire::run_beat::StopReason;

use super::node::{Disk, TIMING, digest};
use super::working::Goal;
use super::world::{World, pair};
use crate::node::roster::Roster;
use crate::planted::{Bug, PLANTED};
use crate::run::RunEvent;

const SECOND: Duration = Duration::from_secs(1);

/// Makes a world of nodes that all train in a run, which the first node started and which would not end by itself.
fn training(count: usize) -> (World, Vec<NodeId>, RunId) {
    training_to(Goal::Accuracy, count)
}

/// Does the same as [`training`], with a run that has this goal.
fn training_to(goal: Goal, count: usize) -> (World, Vec<NodeId>, RunId) {
    let mut world = World::cluster(7, count);
    world.samples = 1 << 20;
    world.goal = goal;
    let nodes = world.alive();
    let run = world.start(nodes[0], false);
    let all = nodes.clone();
    let trains = move |world: &World| all.iter().all(|id| phase(world, *id) == Some(Phase::Training));
    assert!(world.until(30, trains), "{}", world.trace.join("\n"));
    world.pass(2 * SECOND);
    (world, nodes, run)
}

fn phase(world: &World, at: NodeId) -> Option<Phase> {
    Some(world.nodes[&at].core.status(world.time())?.phase)
}

/// Checks that a run ends on these nodes within this many seconds. Returns, for each of them, the nodes that its result
/// names as missing.
fn ends(world: &mut World, run: RunId, nodes: &[NodeId], seconds: u64) -> Vec<Vec<String>> {
    let ended = |world: &World| nodes.iter().all(|id| world.nodes[id].ended.contains_key(&run));
    assert!(world.until(seconds, ended), "{}", world.trace.join("\n"));
    let results = nodes.iter().map(|id| world.nodes[id].ended[&run].as_ref().unwrap());
    let results: Vec<_> = results.collect();
    assert!(results.iter().all(|result| result.agree));
    results.iter().map(|result| result.missing.clone()).collect()
}

fn name(node: NodeId) -> String {
    format!("n{}", node.0)
}

#[test]
fn fault_1_a_stop_at_a_node_that_is_joining_ends_the_run_well() {
    let (mut world, nodes, run) = training(2);
    let guest = world.add(Some(nodes[0]));
    let joins = move |world: &World| phase(world, guest) == Some(Phase::Preparing);
    assert!(world.until(20, joins));
    let reply = world.ask_to_stop(guest);
    assert!(
        matches!(reply, Some(Reply::Ordered(stopped)) if stopped == run),
        "{reply:?}"
    );
    assert_eq!(ends(&mut world, run, &nodes, 10), [[""; 0]; 2]);
}

#[test]
fn fault_2_who_comes_back_after_the_end_ends_too_and_takes_part_in_the_next_run() {
    let (mut world, nodes, run) = training(3);
    let away = nodes[2];
    for &other in &nodes[..2] {
        world.blocked.insert(pair(away, other));
        world.cut(away, other, 3000);
    }
    world.ask_to_stop(nodes[0]);
    assert_eq!(ends(&mut world, run, &nodes[..2], 40), [[name(away)], [name(away)]]);
    world.pass(SECOND);
    world.blocked.clear();
    ends(&mut world, run, &[away], 10);
    world.pass(3 * SECOND);
    world.samples = 50;
    let next = world.start(nodes[1], false);
    assert_eq!(ends(&mut world, next, &nodes, 60), [[""; 0]; 3]);
}

#[test]
fn fault_3_a_seat_that_stays_empty_holds_nobody_up() {
    let mut world = World::cluster(9, 3);
    world.samples = 60;
    let nodes = world.alive();
    let run = world.start(nodes[0], false);
    let opening = |world: &World| nodes.iter().all(|id| world.nodes[id].exchange.is_some());
    assert!(world.until(40, opening));
    // The node's workers die and its data is gone, so its seats stay empty.
    world.nodes.get_mut(&nodes[1]).unwrap().data = false;
    for key in world.nodes[&nodes[1]].workers.keys().copied().collect::<Vec<_>>() {
        world.kill_worker(nodes[1], key);
    }
    assert_eq!(ends(&mut world, run, &nodes, 60), [[""; 0]; 3]);
}

#[test]
fn fault_4_a_model_is_saved_by_workers_that_come_when_all_others_are_gone() {
    let (mut world, nodes, run) = training(2);
    world.ask_to_stop(nodes[0]);
    for &id in &nodes {
        for key in world.nodes[&id].workers.keys().copied().collect::<Vec<_>>() {
            world.kill_worker(id, key);
        }
    }
    assert_eq!(ends(&mut world, run, &nodes, 30), [[""; 0]; 2]);
    assert!(nodes.iter().all(|id| world.nodes[id].models.contains(&run)));
}

#[test]
fn fault_5_a_stop_while_the_only_seat_is_empty_ends_the_run() {
    let (mut world, nodes, run) = training(1);
    for key in world.nodes[&nodes[0]].workers.keys().copied().collect::<Vec<_>>() {
        world.kill_worker(nodes[0], key);
    }
    world.ask_to_stop(nodes[0]);
    assert_eq!(ends(&mut world, run, &nodes, 30), [[""; 0]; 1]);
}

#[test]
fn fault_6_a_node_that_cannot_be_dialled_dials_itself() {
    for undialable in 0..2 {
        let mut world = World::cluster(3, 2);
        world.samples = 60;
        let nodes = world.alive();
        world.undialable.insert(nodes[undialable]);
        let run = world.start(nodes[0], false);
        assert_eq!(ends(&mut world, run, &nodes, 60), [[""; 0]; 2]);
    }
}

#[test]
fn fault_7_two_that_reach_each_other_over_a_third_end_together() {
    let (mut world, nodes, run) = training(3);
    world.blocked.insert(pair(nodes[1], nodes[2]));
    world.cut(nodes[1], nodes[2], 3000);
    world.pass(40 * SECOND);
    world.nodes.get_mut(&nodes[2]).unwrap().stopped = true;
    world.ask_to_stop(nodes[0]);
    world.pass(3 * SECOND / 2);
    world.nodes.get_mut(&nodes[2]).unwrap().stopped = false;
    assert_eq!(ends(&mut world, run, &nodes, 10), [[""; 0]; 3]);
}

#[test]
fn fault_9_who_is_put_in_quarantine_by_one_is_left_out_by_all_and_ends_alone() {
    let (mut world, nodes, run) = training(3);
    world.lies(nodes[0], nodes[1]);
    world.ask_to_stop(nodes[2]);
    let missing = ends(&mut world, run, &nodes, 20);
    assert_eq!(missing[0], [name(nodes[1])]);
    assert_eq!(missing[2], [name(nodes[1])]);
    assert_eq!(missing[1].len(), 2);
}

/// Makes a world of three training nodes, of which the last was killed and restarted this many times and takes part
/// again.
fn rejoined(times: usize) -> (World, Vec<NodeId>, RunId) {
    let (mut world, mut nodes, run) = training(3);
    for _ in 0..times {
        world.die(nodes[2]);
        world.pass(3 * SECOND);
        nodes[2] = world.start_again(nodes[2], nodes[0]);
        let back = nodes[2];
        let trains = move |world: &World| world.trains(back).is_some();
        assert!(world.until(20, trains), "{}", world.trace.join("\n"));
        world.pass(SECOND);
    }
    (world, nodes, run)
}

#[test]
fn a_node_that_was_killed_and_came_back_does_not_wait_for_its_former_process() {
    for times in [1, 2, 3] {
        let (mut world, nodes, run) = rejoined(times);
        // A node that joins now has met none of the earlier processes.
        let newcomer = world.add(Some(nodes[1]));
        let trains = move |world: &World| world.trains(newcomer).is_some();
        assert!(world.until(20, trains), "{}", world.trace.join("\n"));
        let all = [nodes[0], nodes[1], nodes[2], newcomer];
        world.ask_to_stop(nodes[0]);
        assert_eq!(
            ends(&mut world, run, &all, 5),
            [[""; 0]; 4],
            "started again {times} times"
        );
        for id in all {
            let result = world.nodes[&id].ended[&run].as_ref().unwrap();
            let mut names = all.map(|id| world.nodes[&id].info.name.clone());
            let mut participants = result.participants.clone();
            names.sort();
            participants.sort();
            assert_eq!(participants, names);
        }
    }
}

#[test]
fn fault_11_a_disk_that_does_not_answer_holds_up_its_own_node_only() {
    let (mut world, nodes, run) = training(3);
    world.nodes.get_mut(&nodes[1]).unwrap().disk = Disk::Hung;
    world.ask_to_stop(nodes[0]);
    assert_eq!(ends(&mut world, run, &[nodes[0], nodes[2]], 5), [[""; 0]; 2]);
    assert_eq!(ends(&mut world, run, &[nodes[1]], 35), [[""; 0]]);
}

/// Runs three nodes that train in rounds. One of them is frozen for five seconds, and then goes on. Returns two numbers
/// that are counted in the last ten seconds: how often a worker left a round before all workers had reached it, and how
/// often a worker left a round at all.
fn rounds_after_a_halt(seed: u64) -> (u32, u32) {
    let mut world = World::cluster(seed, 3);
    assert!(world.in_rounds.is_some());
    world.samples = 1 << 20;
    world.may_idle = false;
    let nodes = world.alive();
    world.start(nodes[0], false);
    world.pass(10 * SECOND);
    world.nodes.get_mut(&nodes[2]).unwrap().stopped = true;
    world.pass(5 * SECOND);
    world.nodes.get_mut(&nodes[2]).unwrap().stopped = false;
    world.pass(15 * SECOND);
    world.unwaited = (0, 0);
    world.pass(10 * SECOND);
    world.unwaited
}

#[test]
fn workers_wait_for_each_other_again_after_one_has_stood_still() {
    // The seeds cover mesh, server and rings, with the weightings `mean` and `best`.
    for seed in [8, 11, 14, 17, 32, 35, 44, 47] {
        let (unwaited, all) = rounds_after_a_halt(seed);
        assert!(
            unwaited == 0 && all > 50,
            "{unwaited} of {all} rounds did not wait for all workers, seed {seed}"
        );
        PLANTED.set(Some(Bug::NeverWaits));
        let (unwaited, all) = rounds_after_a_halt(seed);
        PLANTED.set(None);
        assert!(
            unwaited > all / 4,
            "only {unwaited} of {all} rounds did not wait for all workers, seed {seed}"
        );
    }
}

/// Returns the weights that a worker of the node has measured and that have reached the target.
fn on_target(world: &World, at: NodeId) -> Vec<i32> {
    let mut trainings = world.nodes[&at]
        .workers
        .values()
        .filter_map(|worker| worker.training.as_ref());
    trainings.find_map(|training| training.on_target.clone()).unwrap()
}

fn digest_of(world: &World, run: RunId, at: NodeId) -> Digest {
    world.nodes[&at].ended[&run].as_ref().unwrap().digest
}

fn stop_of(world: &World, run: RunId, at: NodeId) -> Option<StopReason> {
    world.nodes[&at].ended[&run].as_ref().unwrap().stop
}

#[test]
fn a_run_ends_with_the_weights_that_reached_its_target() {
    let goals = [Goal::Accuracy, Goal::Loss, Goal::Both];
    for (goal, count) in goals.into_iter().flat_map(|goal| [(goal, 1), (goal, 3)]) {
        let (mut world, nodes, run) = training_to(goal, count);
        world.miss_target(nodes[0]);
        world.pass(3 * SECOND);
        assert!(
            world.nodes[&nodes[0]].ended.is_empty(),
            "{goal:?}: a missed target ended the run"
        );
        world.reach_target(nodes[0]);
        let measured = on_target(&world, nodes[0]);
        assert_eq!(ends(&mut world, run, &nodes, 10), vec![Vec::<String>::new(); count]);
        for &id in &nodes {
            assert_eq!(digest_of(&world, run, id), digest(&measured));
            assert_eq!(stop_of(&world, run, id), Some(StopReason::TargetReached));
        }
    }
}

#[test]
fn of_two_that_reach_the_target_one_brings_it_back() {
    let (mut world, nodes, run) = training(3);
    for &id in &nodes[..2] {
        world.reach_target(id);
    }
    let measured = [0, 1].map(|at| digest(&on_target(&world, nodes[at])));
    // Neither node hears of the other before both have stopped.
    assert_eq!(ends(&mut world, run, &nodes, 20), [[""; 0]; 3]);
    let ended = digest_of(&world, run, nodes[2]);
    assert!(
        measured.contains(&ended),
        "{measured:?} {ended}\n{}",
        world.trace.join("\n")
    );
}

#[test]
fn a_run_ends_when_the_one_that_would_bring_back_its_target_dies() {
    for whole_node in [false, true] {
        let (mut world, nodes, run) = training(3);
        // A participant is frozen, so that the others have to wait for its last batch.
        world.nodes.get_mut(&nodes[2]).unwrap().stopped = true;
        world.reach_target(nodes[0]);
        let stands_by = |world: &World| phase(world, nodes[0]) == Some(Phase::Settling);
        assert!(world.until(10, stands_by));
        world.pass(SECOND / 2);
        if whole_node {
            world.die(nodes[0]);
        } else {
            let keys: Vec<_> = world.nodes[&nodes[0]].workers.keys().copied().collect();
            for key in keys {
                world.kill_worker(nodes[0], key);
            }
        }
        world.nodes.get_mut(&nodes[2]).unwrap().stopped = false;
        let left = if whole_node { &nodes[1..] } else { &nodes[..] };
        ends(&mut world, run, left, 45);
    }
}

#[test]
fn who_cannot_get_the_others_batches_brings_the_target_back_all_the_same() {
    let (mut world, nodes, run) = training(3);
    // One of the others becomes unreachable before it can close its origins.
    world.reach_target(nodes[0]);
    for &other in &nodes[..2] {
        world.blocked.insert(pair(nodes[2], other));
        world.cut(nodes[2], other, 3000);
    }
    ends(&mut world, run, &nodes[..2], 60);
}

#[test]
fn what_a_node_has_called_off_it_does_not_begin_after_all() {
    let mut world = World::cluster(11, 3);
    world.samples = 60;
    let nodes = world.alive();
    // The node that prepares the run is frozen before any answer reaches it.
    let run = world.start(nodes[0], false);
    world.nodes.get_mut(&nodes[0]).unwrap().stopped = true;
    let called_off = |world: &World| nodes[1..].iter().all(|id| world.nodes[id].ended.contains_key(&run));
    assert!(world.until(30, called_off), "{}", world.trace.join("\n"));
    world.nodes.get_mut(&nodes[0]).unwrap().stopped = false;
    let over = |world: &World| nodes.iter().all(|id| world.nodes[id].ended.contains_key(&run));
    assert!(world.until(30, over), "{}", world.trace.join("\n"));
    world.pass(5 * SECOND);
    for id in &nodes {
        assert!(world.nodes[id].ended[&run].is_err() && !world.nodes[id].took_part.contains(&run));
    }
    let next = world.start(nodes[1], false);
    assert_eq!(ends(&mut world, next, &nodes, 60), [[""; 0]; 3]);
}

#[test]
fn an_offer_of_an_earlier_attempt_is_nothing_to_a_later_one() {
    let mut world = World::cluster(7, 2);
    world.samples = 50;
    let nodes = world.alive();
    let run = world.start(nodes[0], false);
    let late = nodes[1];
    let prepares = move |world: &World| phase(world, late) == Some(Phase::Preparing);
    assert!(world.until(20, prepares));
    assert!(
        !world.nodes[&late].core.is_offering(run),
        "the node asks its workers before it makes an offer"
    );
    let offer = Err(Excluded::Unable("the data was missing in an earlier attempt".into()));
    world.found(late, RunEvent::Offered { run, offer });
    assert_eq!(ends(&mut world, run, &nodes, 60), [[""; 0]; 2]);
}

#[test]
fn a_killed_node_is_not_waited_for() {
    // The node is killed during training, or after all were asked to stop.
    for settles in [false, true] {
        let (mut world, nodes, run) = training(3);
        if settles {
            world.nodes.get_mut(&nodes[2]).unwrap().stopped = true;
            world.ask_to_stop(nodes[0]);
            world.pass(SECOND / 5);
            world.nodes.get_mut(&nodes[2]).unwrap().stopped = false;
        }
        world.die(nodes[2]);
        if !settles {
            world.pass(3 * SECOND);
            world.ask_to_stop(nodes[0]);
        }
        let missing = ends(&mut world, run, &nodes[..2], 5);
        assert_eq!(missing, [[name(nodes[2])], [name(nodes[2])]]);
    }
}

#[test]
fn a_node_behind_a_firewall_that_refuses_is_waited_for() {
    let (mut world, nodes, run) = training(3);
    // Two nodes lose their sessions and refuse each other's dials from now on. The third node reaches both.
    world.blocked.insert(pair(nodes[1], nodes[2]));
    world.rejecting.insert(pair(nodes[1], nodes[2]));
    world.cut(nodes[1], nodes[2], 100);
    world.reset_sessions(nodes[1], nodes[2]);
    world.pass(20 * SECOND);
    world.ask_to_stop(nodes[0]);
    assert_eq!(ends(&mut world, run, &nodes, 10), [[""; 0]; 3]);
}

#[test]
fn a_node_that_could_never_be_dialled_is_waited_for_while_it_stands_still() {
    let mut world = World::cluster(7, 2);
    world.samples = 1 << 20;
    let nodes = world.alive();
    world.undialable.insert(nodes[1]);
    world.reached.clear();
    for &id in &nodes {
        world.nodes.get_mut(&id).unwrap().roster = Roster::new(id, TIMING.membership);
    }
    world.sessions.clear();
    let run = world.start(nodes[0], false);
    world.pass(10 * SECOND);
    world.reset_sessions(nodes[0], nodes[1]);
    world.pass(SECOND / 10);
    world.nodes.get_mut(&nodes[1]).unwrap().stopped = true;
    world.pass(10 * SECOND);
    world.ask_to_stop(nodes[0]);
    world.pass(5 * SECOND);
    world.nodes.get_mut(&nodes[1]).unwrap().stopped = false;
    assert_eq!(ends(&mut world, run, &nodes, 10), [[""; 0]; 2]);
}

#[test]
fn a_node_that_leaves_hands_over_its_batches_and_the_others_train_on() {
    let (mut world, nodes, run) = training(3);
    world.samples = 300;
    world.ask_to_leave(nodes[2]);
    let gone = |world: &World| !world.nodes[&nodes[2]].alive;
    assert!(world.until(3, gone), "{}", world.trace.join("\n"));
    world.pass(2 * SECOND);
    assert!(nodes[..2].iter().all(|id| phase(&world, *id) == Some(Phase::Training)));
    world.ask_to_stop(nodes[0]);
    let missing = ends(&mut world, run, &nodes[..2], 5);
    assert_eq!(missing, [[name(nodes[2])], [name(nodes[2])]]);
}

#[test]
fn samples_that_a_worker_holds_back_are_named_and_taken_over() {
    let mut stalled = 0;
    for seed in [0, 1, 3, 4, 6, 7, 9, 10, 12, 13] {
        let mut world = World::cluster(seed, 2);
        world.samples = 60;
        world.may_stall = true;
        let nodes = world.alive();
        PLANTED.set(Some(Bug::KeepsLastCursors));
        let run = world.start(nodes[0], false);
        let ended = |world: &World| nodes.iter().all(|id| world.nodes[id].ended.contains_key(&run));
        let are_samples = |one: &WaitingFor| matches!(one, WaitingFor::Samples { .. } | WaitingFor::OwnSamples);
        let waits = |world: &World| {
            let status = world.nodes[&nodes[0]].core.status(world.time());
            status.is_some_and(|status| status.waiting.iter().any(are_samples))
        };
        world.until(60, |world| ended(world) || waits(world));
        stalled += u32::from(waits(&world));
        let ends = world.until(60, ended);
        PLANTED.set(None);
        assert!(ends, "seed {seed}\n{}", world.trace.join("\n"));
    }
    assert!(stalled > 0);
}

/// Makes a world of three nodes that draw three different first weights, in which the first node starts a run. The run
/// takes the weights of the first node. Returns when the exchanges of all nodes run and the others have no weights yet.
fn drawn_differently() -> (World, Vec<NodeId>, RunId) {
    let mut world = World::of_modules(7, 3, 1);
    world.samples = 1 << 20;
    let nodes = world.alive();
    for (draws, id) in (0..).zip(&nodes) {
        world.nodes.get_mut(id).unwrap().draws = draws;
    }
    let run = world.start(nodes[0], false);
    let opened = |world: &World| nodes.iter().all(|id| world.nodes[id].exchange.is_some());
    assert!(world.until(30, opened), "{}", world.trace.join("\n"));
    for id in &nodes {
        let core = &world.nodes[id].exchange.as_ref().unwrap().core;
        assert_eq!(core.exchange().is_newcomer(), *id != nodes[0]);
    }
    (world, nodes, run)
}

#[test]
fn nodes_that_drew_other_first_weights_train_in_their_slots() {
    let (mut world, nodes, run) = drawn_differently();
    let all = nodes.clone();
    let train = move |world: &World| all.iter().all(|id| world.trains(*id).is_some());
    assert!(world.until(20, train), "{}", world.trace.join("\n"));
    world.pass(2 * SECOND);
    for id in &nodes {
        let open = world.nodes[id].exchange.as_ref().unwrap();
        assert!(!open.core.seats().is_empty() && !open.core.plan().is_guest(*id));
    }
    world.ask_to_stop(nodes[1]);
    assert_eq!(ends(&mut world, run, &nodes, 20), [[""; 0]; 3]);
}

#[test]
fn nodes_leave_if_all_that_have_the_first_weights_die_at_once() {
    let (mut world, nodes, run) = drawn_differently();
    world.die(nodes[0]);
    let ended = |world: &World| nodes[1..].iter().all(|id| world.nodes[id].ended.contains_key(&run));
    assert!(world.until(60, ended), "{}", world.trace.join("\n"));
    for id in &nodes[1..] {
        let reason = world.nodes[id].ended[&run].as_ref().unwrap_err();
        assert_eq!(*reason, Excluded::Stranded.into());
    }
    world.samples = 50;
    let next = world.start(nodes[1], false);
    assert_eq!(ends(&mut world, next, &nodes[1..], 60), [[""; 0]; 2]);
}

#[test]
fn a_node_that_leaves_before_it_has_weights_writes_no_checkpoint() {
    let (mut world, nodes, run) = drawn_differently();
    world.ask_to_leave(nodes[2]);
    let gone = |world: &World| !world.nodes[&nodes[2]].alive;
    assert!(world.until(3, gone), "{}", world.trace.join("\n"));
    assert!(!world.nodes[&nodes[2]].checkpoints.contains_key(&run));
}

/// Lets the user's code fail in a worker of this node, once a worker has a seat in the run. `batches` is the number of
/// batches that the worker has emitted before.
fn fail_code(world: &mut World, at: NodeId, batches: u64) {
    let seat = |world: &World| {
        let open = world.nodes[&at].exchange.as_ref()?;
        open.core.seats().keys().next().copied()
    };
    assert!(
        world.until(30, |world| seat(world).is_some()),
        "{}",
        world.trace.join("\n")
    );
    let worker = seat(world).unwrap();
    let stats = WorkerStats {
        batches,
        ..WorkerStats::default()
    };
    world.run(at, RunEvent::Worker(worker, FromWorker::Stats(Box::new(stats))));
    let failed = FromWorker::Failed {
        reason: "net.py:7 in forward: RuntimeError".into(),
        cause: FailureCause::Code,
    };
    world.run(at, RunEvent::Worker(worker, failed));
    world.pass(5 * SECOND);
}

#[test]
fn a_node_whose_code_fails_three_times_leaves_and_the_others_go_on() {
    let (mut world, nodes, run) = training(2);
    // A worker that has emitted a batch since may fail again.
    for batches in [0, 0, 1, 0] {
        fail_code(&mut world, nodes[1], batches);
        assert_eq!(phase(&world, nodes[1]), Some(Phase::Training));
    }
    fail_code(&mut world, nodes[1], 0);
    let reason = Excluded::Unable("net.py:7 in forward: RuntimeError".to_owned().into());
    let ended = world.nodes[&nodes[1]].ended[&run].as_ref().unwrap_err();
    assert_eq!(*ended, reason.into());
    assert_eq!(phase(&world, nodes[0]), Some(Phase::Training));
    world.ask_to_stop(nodes[0]);
    assert_eq!(ends(&mut world, run, &nodes[..1], 40), [[name(nodes[1])]]);
}
