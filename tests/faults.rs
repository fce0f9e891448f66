//! Tests of faults of nodes during a run: nodes join late, die, restart, fall silent and return.

use serde_json::Value;

use crate::harness::cluster::{Cluster, Node, SOON, job, kill};
use crate::harness::watching::{
    checkpoints, kill_node, stats, stop, wait_for_record, wait_until_all_train, wait_until_trains, wait_until_trains_on,
};
use crate::harness::{Running, event_lines, tells, words};

/// Number of training samples in the built-in digits.
const SAMPLES: u64 = 60_000;

/// Flags of a job whose steps are so short that an epoch of the built-in digits takes seconds.
const SHORT_STEPS: &[&str] = &["--model", "dense 32, relu, dense", "--minibatch"];

/// Starts a run on the built-in digits and waits until a node trains. The number of epochs is raised until at least half of
/// the run remains at that time on this machine.
fn start_long(cluster: &Cluster, job: &[&str], node: &str) -> (Running, u64) {
    // Small minibatches make the run longer.
    let job = [job, SHORT_STEPS, &["8", "--epochs"]].concat();
    for epochs in (0..10).map(|doublings| 1 << doublings) {
        let text = epochs.to_string();
        let mut client = cluster
            .tau
            .start(&cluster.asking("start", &[&job[..], &[&text]].concat()));
        let started = client.read_object();
        let mut done = 0;
        Cluster::wait_until(&format!("{node} does not train"), || {
            let mut records = stats(cluster);
            records.retain(|record| record["run"] == started["run"]);
            let samples = |record: &Value| record["samples"].as_u64().unwrap_or(0);
            done = records.iter().map(samples).sum();
            let trains = |record: &Value| record["state"] == "training" && samples(record) > 0;
            client.is_over() || records.iter().any(|record| record["node"] == node && trains(record))
        });
        if !client.is_over() && 2 * done <= epochs * SAMPLES {
            return (client, epochs);
        }
        client.finish().ok();
    }
    panic!("this machine trains all samples faster than its nodes say so")
}

/// Waits until a node reports a residual above zero.
fn wait_for_residual(cluster: &Cluster, node: &str) {
    wait_for_record(cluster, "the node does not say what it has not sent", |record| {
        record["node"] == node && record["residual_norm"].as_f64() > Some(0.0)
    });
}

/// Waits until another worker has replaced a node's only worker.
fn wait_until_replaced(node: &Node, dead: u32) {
    Cluster::wait_until(
        "the worker is not replaced",
        || matches!(node.workers()[..], [worker] if worker != dead),
    );
}

#[test]
fn a_node_that_joins_in_the_middle_trains_and_agrees() {
    let mut cluster = Cluster::training(2);
    let first = cluster.nodes[0].name.clone();
    wait_until_trains(&cluster, &first);
    let late = cluster.add(&[]).name.clone();
    wait_until_trains(&cluster, &late);
    let last = stop(&cluster).finished(3);
    cluster.assert_saved(&[(&last, 3)]);
}

#[test]
fn a_worker_that_is_killed_is_replaced_and_stats_say_what_is_lost() {
    let cluster = Cluster::training(2);
    let name = cluster.nodes[0].name.clone();
    // Workers report the size of their residual every second.
    wait_for_residual(&cluster, &name);
    let dead = cluster.nodes[0].worker();
    kill("-KILL", dead);
    wait_until_replaced(&cluster.nodes[0], dead);
    wait_until_trains_on(&cluster, &name);
    let last = stop(&cluster).finished(2);
    assert!(last["residual_lost"].as_f64() > Some(0.0), "{last}");
}

#[test]
fn a_node_that_is_killed_and_started_again_trains_again() {
    let mut cluster = Cluster::training(3);
    let dead = kill_node(&mut cluster, 2);
    let again = cluster.add(&[]).name.clone();
    wait_until_trains(&cluster, &again);
    let last = stop(&cluster).finished(3);
    assert_eq!(last["missing"], Value::from(vec![dead]), "{last}");
}

#[test]
fn a_node_that_stood_still_catches_up() {
    let cluster = Cluster::training(3);
    let name = cluster.nodes[2].name.clone();
    wait_until_trains(&cluster, &name);
    let pid = cluster.nodes[2].process.pid();
    kill("-STOP", pid);
    let state = |cluster: &Cluster| {
        let node = cluster.listed().into_iter().find(|node| node["node"] == name.as_str());
        node.map(|node| node["state"].clone())
    };
    Cluster::wait_until("nobody notices", || state(&cluster) == Some("silent".into()));
    kill("-CONT", pid);
    Cluster::wait_until("it does not come back", || state(&cluster) == Some("training".into()));
    wait_until_trains_on(&cluster, &name);
    let snapshots = cluster
        .nodes
        .iter()
        .any(|node| tells(&node.process.log(), "snapshot_started"));
    assert!(!snapshots, "what it missed is kept for it");
    stop(&cluster).finished_by_all(3);
}

#[test]
fn survivors_train_what_a_dead_node_leaves() {
    // Each worker's samples of an epoch are dealt out in sixteen shards.
    const SHARD: u64 = SAMPLES / 4 / 16 + 1;
    let mut cluster = Cluster::of(4);
    let (client, epochs) = start_long(&cluster, SOON, &cluster.nodes[3].name);
    let dead = kill_node(&mut cluster, 3);
    let last = client.finish().agreed();
    assert_eq!(last["missing"], Value::from(vec![dead]), "{last}");
    let count = |key: &str| last[key].as_u64().unwrap();
    let (samples, repeated) = (count("samples"), count("repeated_samples"));
    // Every sample is in some batch; the remaining ones were trained twice, and are counted as repeated.
    assert_eq!(samples - repeated, epochs * SAMPLES, "{last}");
    // The samples that the dead node had under way are in a shard that two workers may claim before they hear of each
    // other; so are the last shards of each epoch.
    assert!(repeated <= epochs * 6 * SHARD, "{last}");
}

#[test]
fn a_node_that_is_terminated_hands_over_its_samples_and_what_it_has_learned() {
    for exchange in ["strom", "mesh:every=4"] {
        let mut cluster = Cluster::of(3);
        // No node gives a dead node up within this test: the others hear its good-bye.
        let job = ["--trainers", "all", "--exchange", exchange];
        let (client, epochs) = start_long(&cluster, &job, &cluster.nodes[2].name);
        let node = cluster.nodes.remove(2);
        let ended = node.terminate().ok();
        assert!(tells(&ended.stderr, "leaving_run"), "{}", ended.stderr);
        let last = client.finish().trained(epochs * SAMPLES);
        assert_eq!(last["nodes"], 2, "{last}");
        // Only less than one step of the lattice for each weight is lost.
        assert!(last["residual_lost"].as_f64() < Some(1e-3), "{last}");
    }
}

#[test]
fn what_a_node_without_time_to_leave_has_not_sent_is_counted() {
    let mut cluster = Cluster::of(2);
    let name = cluster.add(&["--grace", "0"]).name.clone();
    cluster.must("start", &job("1000000", &["--detach"]));
    wait_for_residual(&cluster, &name);
    cluster.nodes.pop().unwrap().terminate().ok();
    let last = stop(&cluster).agreed();
    assert_eq!(last["missing"], Value::from(vec![name]), "{last}");
    assert!(last["residual_lost"].as_f64() > Some(0.0), "{last}");
}

#[test]
fn the_only_node_of_a_run_that_is_terminated_keeps_a_checkpoint() {
    let mut cluster = Cluster::training(1);
    let name = cluster.nodes[0].name.clone();
    wait_until_trains(&cluster, &name);
    let node = cluster.nodes.remove(0);
    let ended = node.terminate().ok();
    let kept = checkpoints(&cluster);
    let told = event_lines(&ended.stderr, "checkpoint_kept");
    assert!(
        kept.len() == 1 && told.iter().any(|line| line.contains(&kept[0])),
        "{kept:?} {}",
        ended.stderr
    );
}

#[test]
fn others_finish_what_a_guest_had_begun() {
    let mut cluster = Cluster::of(2);
    // Without a time limit a run that cannot end would block this test for ever.
    let limit = ["8", "--epochs", "3", "--max-seconds", "300"];
    let job = [SOON, SHORT_STEPS, &limit].concat();
    let mut client = cluster.tau.start(&cluster.asking("start", &job));
    client.read_line();
    let guest = cluster.add(&[]).name.clone();
    wait_until_trains(&cluster, &guest);
    kill_node(&mut cluster, 2);
    // A guest trains shards of other workers, and dies half-way through one.
    client.finish().trained(3 * SAMPLES);
}

#[test]
fn a_run_goes_on_after_all_nodes_were_killed() {
    let mut cluster = Cluster::training(2);
    let first = cluster.nodes[0].name.clone();
    wait_until_trains(&cluster, &first);
    let before: u64 = stats(&cluster)
        .iter()
        .filter_map(|record| record["samples"].as_u64())
        .sum();
    // A checkpoint that is requested while another is being written is not skipped.
    for _ in 0..5 {
        cluster.must("checkpoint", &[]);
    }
    Cluster::wait_until("no checkpoints are written", || checkpoints(&cluster).len() == 2);
    while !cluster.nodes.is_empty() {
        kill_node(&mut cluster, 0);
    }
    let files = checkpoints(&cluster);
    let run = files[0].split('/').nth(1).unwrap().to_owned();
    // One of the two checkpoints was torn by the crash; the other one is enough.
    let torn = std::fs::read(cluster.tau.path(&files[1])).unwrap();
    std::fs::write(cluster.tau.path(&files[1]), &torn[..torn.len() / 2]).unwrap();

    // Nodes in the same folders under new names, and one that has no checkpoint.
    for _ in 0..3 {
        cluster.add(&[]);
    }
    cluster.wait_for_nodes(3);
    let unknown = cluster.ask("start", &["--resume", "tau-node/0123456789abcdef"]);
    unknown.fails(1, "no node has a checkpoint");
    cluster.must("start", &["--resume", &format!("tau-node/{run}"), "--detach"]);
    wait_until_all_train(&cluster);
    let last = stop(&cluster).finished_by_all(3);
    let logs: String = cluster.nodes.iter().map(|node| node.process.log()).collect();
    let torn = cluster
        .tau
        .path(&files[1])
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let unusable = event_lines(&logs, "checkpoint_unusable");
    assert!(
        unusable.iter().any(|line| line.contains(&torn)),
        "nobody says that {torn} is torn: {logs}"
    );
    let gone_on: u64 = event_lines(&logs, "run_resumed")
        .iter()
        .find_map(|line| line.split("samples=").nth(1)?.split_whitespace().next()?.parse().ok())
        .unwrap();
    assert!(
        gone_on >= before,
        "it goes on from {gone_on}, but {before} samples were trained before"
    );
    assert!(last["samples"].as_u64().unwrap() > gone_on, "{last}");
}

#[test]
fn checkpoints_are_written_now_and_then() {
    let mut cluster = Cluster::of(1);
    cluster.must("start", &job("1000000", &["--checkpoint-every", "0.2", "--detach"]));
    let written = |cluster: &Cluster| event_lines(&cluster.nodes[0].process.log(), "checkpoint_written").len();
    Cluster::wait_until("no checkpoints are written", || written(&cluster) >= 3);
    kill_node(&mut cluster, 0);
    let files = checkpoints(&cluster);
    assert_eq!(files.len(), 1, "{files:?}");
    let run = files[0].split('/').nth(1).unwrap().to_owned();
    cluster.add(&[]);
    cluster.wait_for_nodes(1);
    cluster.must("start", &["--resume", &format!("tau-node/{run}"), "--detach"]);
    wait_until_trains(&cluster, &cluster.nodes[0].name);
    let log = cluster.nodes[0].process.log();
    assert!(tells(&log, "run_resumed"), "{log}");
    // The node was alone, so its worker never waited and its saved state fits the ledger.
    assert!(!tells(&log, "worker_state_dropped"), "{log}");
    stop(&cluster).agreed();
}

#[test]
fn only_a_run_can_be_gone_on_with() {
    let cluster = Cluster::of(1);
    let refused = |extra: &[&str]| {
        let output = cluster.ask("start", extra);
        assert_eq!(output.code, 2, "{}", output.stderr);
        output.stderr
    };
    assert!(refused(&["--resume", "tau-node/nothing"]).contains("does not name a run"));
    let other = words("--resume tau-node/0123456789abcdef --epochs 3 --seed 3 --lr-schedule constant");
    let flags = refused(&other);
    assert!(
        flags.contains("in which --lr-schedule, --seed cannot be changed"),
        "{flags}"
    );
    let idle = cluster.ask("checkpoint", &[]);
    idle.fails(1, "no run");
}

#[test]
#[cfg(target_os = "linux")]
fn flipped_bits_are_reported_and_healed() {
    use protocol::job::model::{Layout, ModelSpec, Shape, initial_counts};
    use protocol::weights::lattice::weight_of;

    use crate::harness::memory::flip_bits;

    const MODEL: &str = "dense 4096, relu, dense 2";
    let cluster = Cluster::of(3);
    // At a τ this large hardly any weight changes, so that a replica can be found in a process's memory.
    let job = ["--data", "csv:points.csv", "--model", MODEL, "--tau", "0.25"];
    let job = [&job[..], &["--optimiser", "sgd:0.08,momentum=0.9"]].concat();
    let job = [&job[..], &["--seed", "7", "--epochs", "1000000", "--detach"]].concat();
    cluster.must("start", &job);
    wait_until_all_train(&cluster);
    let layout = Layout::new(&MODEL.parse::<ModelSpec>().unwrap(), Shape::Flat(2), 2).unwrap();
    let counts = initial_counts(&layout, 7);
    let in_ledger: Vec<[u8; 4]> = counts.iter().map(|count| count.to_ne_bytes()).collect();
    let in_worker: Vec<[u8; 4]> = counts.iter().map(|&count| weight_of(count).to_ne_bytes()).collect();
    flip_bits(cluster.nodes[0].process.pid(), &in_ledger, 19, 1);
    flip_bits(cluster.nodes[1].process.pid(), &in_ledger, 19, 2);
    let worker = cluster.nodes[2].worker();
    flip_bits(worker, &in_worker, 22, 1);

    // No request is needed: the run goes on, and audits find the damage.
    let expected = [
        ("ledger_corrected", ""),
        ("ledger_replaced", ""),
        ("worker_failed", "the memory of this worker is corrupted"),
    ];
    for (node, (event, reason)) in cluster.nodes.iter().zip(expected) {
        Cluster::wait_until(event, || {
            let log = node.process.log();
            event_lines(&log, event).iter().any(|line| line.contains(reason))
        });
    }
    let third = cluster.nodes[2].name.clone();
    wait_until_replaced(&cluster.nodes[2], worker);
    wait_until_trains_on(&cluster, &third);
    stop(&cluster).finished(3);
}
