//! Observes a run of a test cluster through `tau stats`, and disturbs its nodes.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::Output;
use super::cluster::{Cluster, PATIENCE, cut_power};

/// Returns the newest record of each node.
pub(crate) fn stats(cluster: &Cluster) -> Vec<Value> {
    cluster.ask("stats", &["--once"]).objects()
}

/// Waits for a record from now on for which `holds` is true. Every node sends a record each second.
pub(crate) fn wait_for_record(cluster: &Cluster, what: &str, mut holds: impl FnMut(&Value) -> bool) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let since = Instant::now();
    let mut records = cluster.tau.start(&cluster.asking("stats", &[]));
    loop {
        assert!(since.elapsed() < PATIENCE, "{what}");
        let record = records.read_object();
        if record["time"].as_f64() >= Some(now) && holds(&record) {
            return;
        }
    }
}

/// Waits until a node has trained some samples.
pub(crate) fn wait_until_trains(cluster: &Cluster, node: &str) {
    wait_until_train(cluster, &[node]);
}

/// Waits until each of these nodes has trained some samples.
pub(crate) fn wait_until_train(cluster: &Cluster, nodes: &[&str]) {
    let mut waited: Vec<&str> = nodes.to_vec();
    wait_for_record(cluster, &format!("not all of {nodes:?} train"), |record| {
        let trains = record["state"] == "training" && record["samples"].as_u64() > Some(0);
        waited.retain(|node| !(trains && record["node"] == **node));
        waited.is_empty()
    });
}

/// Waits until all nodes have trained some samples.
pub(crate) fn wait_until_all_train(cluster: &Cluster) {
    let names: Vec<&str> = cluster.nodes.iter().map(|node| &*node.name).collect();
    wait_until_train(cluster, &names);
}

/// Waits until a node has trained more samples than in its first record from now on.
pub(crate) fn wait_until_trains_on(cluster: &Cluster, node: &str) {
    let mut before = None;
    wait_for_record(cluster, &format!("{node} does not train any more"), |record| {
        record["node"] == node
            && record["samples"].as_u64() > Some(*before.get_or_insert(record["samples"].as_u64().unwrap_or(0)))
    });
}

/// Stops the run, and follows it to its end.
pub(crate) fn stop(cluster: &Cluster) -> Output {
    cluster.must("stop", &[]);
    cluster.ask("start", &["--attach"])
}

/// Waits for this time, during which the cluster goes on.
pub(crate) fn pass(time: Duration) {
    let start = Instant::now();
    Cluster::wait_until("time does not pass", || start.elapsed() >= time);
}

/// Kills a node and its workers as a power cut would, and returns the node's name.
pub(crate) fn kill_node(cluster: &mut Cluster, index: usize) -> String {
    let node = cluster.nodes.remove(index);
    cut_power(node.process.pid(), node.dir.to_str().unwrap());
    node.name
}

/// Returns the paths of the checkpoints in the nodes' folders.
pub(crate) fn checkpoints(cluster: &Cluster) -> Vec<String> {
    let files = cluster.tau.files().into_iter();
    files.filter(|file| file.ends_with(".checkpoint")).collect()
}
