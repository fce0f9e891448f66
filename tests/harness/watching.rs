//! What is seen of a run from outside, and what is done to it in the middle.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::Output;
use super::cluster::{Cluster, cut_power};

/// The newest record of each node.
pub(crate) fn stats(cluster: &Cluster) -> Vec<Value> {
    cluster.ask("stats", &["--once"]).objects()
}

/// The newest record of one node.
pub(crate) fn stats_of(cluster: &Cluster, node: &str) -> Option<Value> {
    stats(cluster).into_iter().find(|record| record["node"] == node)
}

/// Waits until a node has trained some samples.
pub(crate) fn wait_until_trains(cluster: &Cluster, node: &str) {
    Cluster::wait_until(&format!("{node} does not train"), || {
        stats_of(cluster, node)
            .is_some_and(|record| record["state"] == "training" && record["samples"].as_u64() > Some(0))
    });
}

/// Waits until a node has trained more than it had.
pub(crate) fn wait_until_trains_on(cluster: &Cluster, node: &str) {
    let trained = || {
        stats_of(cluster, node)
            .and_then(|record| record["samples"].as_u64())
            .unwrap_or(0)
    };
    let before = trained();
    Cluster::wait_until(&format!("{node} does not train any more"), || trained() > before);
}

/// Ends the run and returns its last object, which says that all agree.
pub(crate) fn stop(cluster: &Cluster) -> Value {
    let stopped = cluster.ask("stop", &[]);
    assert_eq!(stopped.code, 0, "{}", stopped.stderr);
    let output = cluster.ask("start", &["--attach"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    let last = output.last();
    assert_eq!(last["replicas_agree"], true, "{last}");
    last
}

/// The last object of a run of two nodes that agree.
pub(crate) fn agreed(output: &Output) -> Value {
    assert_eq!(output.code, 0, "{}", output.stderr);
    let last = output.last();
    assert_eq!(
        (&last["replicas_agree"], &last["nodes"]),
        (&true.into(), &2.into()),
        "{last}"
    );
    last
}

/// Lets some time pass in which things take their course.
pub(crate) fn pass(time: Duration) {
    let start = Instant::now();
    Cluster::wait_until("time does not pass", || start.elapsed() >= time);
}

/// Kills a node and its workers, as a power cut would.
pub(crate) fn kill_node(cluster: &mut Cluster, index: usize) -> String {
    let node = cluster.nodes.remove(index);
    cut_power(node.process.pid(), node.dir.to_str().unwrap());
    node.name
}

/// The checkpoints in the nodes' folders, as files.
pub(crate) fn checkpoints(cluster: &Cluster) -> Vec<String> {
    let files = cluster.tau.files().into_iter();
    files.filter(|file| file.ends_with(".checkpoint")).collect()
}
