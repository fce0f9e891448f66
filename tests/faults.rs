//! What may happen to nodes in the middle of a run: they come late, die, start again, fall silent and return.

use serde_json::Value;

use crate::harness::cluster::{Cluster, job, kill, processes_with};
use crate::harness::points_csv;

/// A cluster with a run under way that does not end by itself.
fn training(nodes: usize) -> Cluster {
    let cluster = Cluster::of(nodes);
    points_csv(&cluster.tau, "points.csv", 600);
    let started = cluster.ask("start", &job("1000000", &["--detach"]));
    assert_eq!(started.code, 0, "{}", started.stderr);
    cluster
}

/// The newest record of each node.
fn stats(cluster: &Cluster) -> Vec<Value> {
    let output = cluster.ask("stats", &["--once"]);
    let lines = output.stdout.lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits until a node has trained some samples.
fn wait_until_trains(cluster: &Cluster, node: &str) {
    Cluster::wait_until(&format!("{node} does not train"), || {
        let found = stats(cluster).into_iter().find(|record| record["node"] == node);
        found.is_some_and(|record| record["state"] == "training" && record["samples"].as_u64() > Some(0))
    });
}

/// Ends the run and returns its last object, which says that all agree.
fn stop(cluster: &Cluster) -> Value {
    let stopped = cluster.ask("stop", &[]);
    assert_eq!(stopped.code, 0, "{}", stopped.stderr);
    let output = cluster.ask("start", &["--attach"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    let last = output.last();
    assert_eq!(last["replicas_agree"], true, "{last}");
    last
}

/// Kills a node and its workers, as a power cut would.
fn kill_node(cluster: &mut Cluster, index: usize) -> String {
    let node = cluster.nodes.remove(index);
    let dir = node.dir.to_str().unwrap().to_owned();
    kill("-KILL", node.process.pid());
    for worker in processes_with(&dir, "worker") {
        kill("-KILL", worker);
    }
    node.name
}

#[test]
fn a_node_that_joins_in_the_middle_trains_and_agrees() {
    let mut cluster = training(2);
    let first = cluster.nodes[0].name.clone();
    wait_until_trains(&cluster, &first);
    let late = cluster.add(&[]).name.clone();
    wait_until_trains(&cluster, &late);
    let last = stop(&cluster);
    assert_eq!(last["nodes"], 3, "{last}");
    let [digests] = &cluster.saved_digests()[..] else {
        panic!("there was one run");
    };
    assert!(
        digests.len() == 3 && digests.iter().all(|digest| *digest == last["digest"]),
        "{digests:?}"
    );
}

#[test]
fn a_node_that_is_killed_and_started_again_trains_again() {
    let mut cluster = training(3);
    let dead = kill_node(&mut cluster, 2);
    let again = cluster.add(&[]).name.clone();
    wait_until_trains(&cluster, &again);
    let last = stop(&cluster);
    assert_eq!(last["nodes"], 3, "{last}");
    assert_eq!(last["missing"], Value::from(vec![dead]), "{last}");
}

#[test]
fn a_node_that_stood_still_catches_up() {
    let cluster = training(3);
    let name = cluster.nodes[2].name.clone();
    wait_until_trains(&cluster, &name);
    let pid = cluster.nodes[2].process.pid();
    kill("-STOP", pid);
    let state = |cluster: &Cluster| {
        let node = cluster.listed().into_iter().find(|node| node["node"] == name.as_str());
        node.map(|node| node["state"].clone())
    };
    Cluster::wait_until("nobody notices", || state(&cluster) == Some("away".into()));
    kill("-CONT", pid);
    Cluster::wait_until("it does not come back", || state(&cluster) == Some("alive".into()));
    wait_until_trains(&cluster, &name);
    let last = stop(&cluster);
    assert_eq!(
        (&last["nodes"], &last["missing"]),
        (&3.into(), &Value::Array(Vec::new())),
        "{last}"
    );
}

#[test]
fn survivors_train_what_a_dead_node_leaves() {
    const SAMPLES: u64 = 60_000;
    // Each worker's samples of an epoch come in sixteen shards.
    const SHARD: u64 = SAMPLES / 4 / 16 + 1;
    let mut cluster = Cluster::of(4);
    let mut client = cluster
        .tau
        .start(&cluster.asking("start", &["--epochs", "1", "--minibatch", "32"]));
    client.read_line();
    Cluster::wait_until("the epoch does not begin", || {
        let done: u64 = stats(&cluster)
            .iter()
            .filter_map(|record| record["samples"].as_u64())
            .sum();
        done > SAMPLES / 5
    });
    let dead = kill_node(&mut cluster, 3);
    let output = client.finish();
    assert_eq!(output.code, 0, "{}", output.stderr);
    let last = output.last();
    assert_eq!(last["replicas_agree"], true, "{last}");
    assert_eq!(last["missing"], Value::from(vec![dead]), "{last}");
    let count = |key: &str| last[key].as_u64().unwrap();
    let (samples, repeated) = (count("samples"), count("repeated_samples"));
    // Every sample is in some batch; what is beyond that was trained twice, and counted.
    assert_eq!(samples - repeated, SAMPLES, "{last}");
    // What the dead node had under way is in a shard that two may claim before they hear of each other; and so are the
    // last shards of the epoch.
    assert!(repeated <= 6 * SHARD, "{last}");
}
