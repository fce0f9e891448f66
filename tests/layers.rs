//! Tests of models whose layers are spread over several nodes: they train as one worker would, survive the same faults
//! as other runs, and end in one file.

use protocol::reasons::waiting::{NodeTask, WaitingFor};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::cluster::{Cluster, Node, SOON, kill};
use crate::harness::watching::{
    checkpoints, kill_node, stop, wait_for_record, wait_until_trains, wait_until_trains_on,
};
use crate::harness::{Tau, points_csv, tells};

/// A small job whose model has enough layers to be spread.
pub(crate) const DEEP: &[&str] = &[
    "--data",
    "csv:points.csv",
    "--model",
    "dense 16, relu, dense 12, relu, dense 2",
    "--minibatch",
    "16",
    // These points are so easy that the default optimiser's orthogonal updates in several pipelines would go too far.
    "--optimiser",
    "adam",
];

/// Longer than the end of a run takes without waiting for lost peers, even on a busy machine; shorter than any wait for
/// a lost peer.
const AT_ONCE: Duration = Duration::from_secs(25);

/// Asserts that the assembled model has the accuracy that the pipeline measured.
fn assert_is_as_good(tau: &Tau, finished: &Value) {
    let model = finished["model"].as_str().unwrap();
    let evaluated = tau.must(&["evaluate", model, "--data", "csv:points.csv", "--json"]);
    assert_eq!(evaluated.last()["accuracy"], finished["accuracy"], "{finished}");
}

#[test]
fn layers_on_several_nodes_train_agree_and_end_in_one_model() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    for (exchange, nodes, pipelines) in [
        ("layers:groups=3", "3", 1),
        ("layers:groups=2,micro=1", "4", 2),
        ("layers:cuts=4", "2", 1),
        // Without a number there are as few groups as possible, here two.
        ("layers", "2", 1),
        ("layers:slices=2", "4", 2),
        ("layers:groups=2,slices=2,micro=2", "4", 1),
    ] {
        let run = ["train", "--nodes", nodes, "--threads", "1", "--epochs", "20", "--json"];
        let output = tau.run(&[&run, DEEP, &["--exchange", exchange]].concat());
        assert_eq!(output.code, 0, "{exchange}: {}", output.stderr);
        let finished = output.last();
        assert_eq!(finished["replicas_agree"], true, "{exchange}: {finished}");
        assert!(finished["accuracy"].as_f64().unwrap() > 0.95, "{exchange}: {finished}");
        // Each sample of a pipeline counts once; those that two pipelines claim at the end count twice, and are
        // reported as repeated.
        let count = |key: &str| finished[key].as_u64().unwrap();
        let once = count("samples") - count("repeated_samples");
        assert_eq!(once, 20 * 480, "{exchange}, {pipelines} pipelines: {finished}");
        assert_is_as_good(&tau, &finished);
        // The groups that the nodes have decided are in the kept job.
        let kept = Path::new(finished["model"].as_str().unwrap()).with_file_name("job.toml");
        let kept = std::fs::read_to_string(kept).unwrap();
        let told = ["layers:groups=2\"", "layers:cuts="]
            .iter()
            .any(|cut| kept.contains(cut));
        assert!(exchange != "layers" || told, "{kept}");
    }
}

#[test]
fn another_pipeline_trains_what_a_dead_node_leaves() {
    let mut cluster = Cluster::of(4);
    let job = ["--exchange", "layers:groups=2", "--epochs", "200"];
    let job = [DEEP, SOON, &job].concat();
    let mut client = cluster.tau.start(&cluster.asking("start", &job));
    client.wait_until_trains();
    let dead = kill_node(&mut cluster, 3);
    let last = client.finish().trained(200 * 480);
    assert_eq!(last["missing"], Value::from(vec![dead]), "{last}");
    assert_is_as_good(&cluster.tau, &last);
}

/// Returns the name of the node that leads the first pipeline: nodes are assigned in the order of their addresses.
fn led_by(cluster: &Cluster) -> String {
    let address = |node: &Node| node.address.parse::<SocketAddr>().unwrap();
    let first = cluster.nodes.iter().min_by_key(|node| address(node));
    first.unwrap().name.clone()
}

/// Removes a node from its cluster by its name.
fn take(cluster: &mut Cluster, name: &str) -> Node {
    let at = cluster.nodes.iter().position(|node| node.name == name).unwrap();
    cluster.nodes.remove(at)
}

#[test]
fn another_pipeline_trains_on_when_a_leader_is_terminated() {
    let mut cluster = Cluster::of(4);
    let leader = led_by(&cluster);
    let leads = take(&mut cluster, &leader);
    let job = ["--exchange", "layers:groups=2", "--epochs", "300"];
    let mut client = cluster.tau.start(&cluster.asking("start", &[DEEP, &job].concat()));
    client.read_line();
    wait_until_trains(&cluster, &leader);
    leads.terminate().ok();
    let last = client.finish().trained(300 * 480);
    assert_eq!(last["missing"], Value::from(vec![leader]), "{last}");
    assert_is_as_good(&cluster.tau, &last);
}

#[test]
fn a_pipeline_whose_nodes_are_all_terminated_is_gone_on_with() {
    let mut cluster = Cluster::of(2);
    let job = ["--exchange", "layers:groups=2", "--epochs", "400", "--detach"];
    cluster.must("start", &[DEEP, &job].concat());
    wait_until_trains(&cluster, &led_by(&cluster));
    while let Some(node) = cluster.nodes.pop() {
        node.terminate().ok();
    }
    let kept = checkpoints(&cluster);
    assert_eq!(kept.len(), 2, "{kept:?}");
    let run = kept[0].split('/').nth(1).unwrap().to_owned();
    // The nodes restart in their old folders.
    cluster.add(&[]);
    cluster.add(&[]);
    cluster.wait_for_nodes(2);
    let last = cluster.ask("start", &["--resume", &run]).trained(400 * 480);
    assert_eq!(last["nodes"], 2, "{last}");
    assert_is_as_good(&cluster.tau, &last);
}

#[test]
fn a_pipeline_waits_for_who_stands_still_and_for_a_worker_that_is_started_again() {
    let cluster = Cluster::of(3);
    let job = ["--exchange", "layers:groups=3", "--epochs", "1000000", "--detach"];
    cluster.must("start", &[DEEP, SOON, &job].concat());
    let leader = led_by(&cluster);
    wait_until_trains(&cluster, &leader);
    for node in &cluster.nodes {
        kill("-STOP", node.process.pid());
        kill("-CONT", node.process.pid());
        kill("-KILL", node.worker());
        Cluster::wait_until("the worker is not replaced", || node.workers().len() == 1);
        wait_until_trains_on(&cluster, &leader);
    }
    let last = stop(&cluster).finished(3);
    assert_is_as_good(&cluster.tau, &last);
}

#[test]
fn whose_worker_a_pipeline_waits_for_is_named() {
    let cluster = Cluster::of(2);
    let (leader, other) = (led_by(&cluster), &cluster.nodes[1]);
    let asked = &cluster.nodes[0].address;
    let start = ["start", "--cluster", asked, "--credentials", "cluster.pem"];
    let job = ["--exchange", "layers:groups=2", "--epochs", "1000000"];
    let client = cluster.tau.start(&[&start, DEEP, SOON, &job].concat());
    wait_until_trains(&cluster, &leader);
    // The replacing worker does not find the data.
    let (data, away) = (cluster.tau.path("points.csv"), cluster.tau.path("away.csv"));
    std::fs::rename(&data, &away).unwrap();
    kill("-KILL", other.worker());
    let missing = WaitingFor::node(&other.name, NodeTask::RestartWorker);
    let sentence = format!("waiting for {missing}");
    Cluster::wait_until("whose worker is missing is not said", || {
        client.log().contains(&sentence)
    });
    std::fs::rename(&away, &data).unwrap();
    Cluster::wait_until("the worker is not replaced", || other.workers().len() == 1);
    kill("-KILL", other.worker());
    wait_until_trains_on(&cluster, &leader);
    client.interrupt();
    client.finish().ok();
}

#[test]
fn a_worker_that_dies_at_the_end_is_replaced_and_the_model_measured() {
    for exchange in ["layers:groups=2", "layers:slices=2"] {
        let cluster = Cluster::of(2);
        let leader = led_by(&cluster);
        for node in &cluster.nodes {
            let job = ["--exchange", exchange, "--epochs", "1000000", "--detach"];
            cluster.must("start", &[DEEP, SOON, &job].concat());
            wait_until_trains(&cluster, &leader);
            // The paused worker makes no further step, and is killed before the other workers have ended.
            let worker = node.worker();
            kill("-STOP", worker);
            cluster.must("stop", &[]);
            kill("-KILL", worker);
            let output = cluster.ask("start", &["--attach"]);
            assert_eq!(output.code, 0, "{exchange}, {}: {}", node.name, output.stderr);
            let last = output.last();
            assert_eq!(last["replicas_agree"], true, "{last}");
            assert_is_as_good(&cluster.tau, &last);
            cluster.wait_for_nodes(2);
        }
    }
}

#[test]
fn two_pipelines_that_are_stopped_are_free_at_once() {
    let cluster = Cluster::of(4);
    for _ in 0..4 {
        let job = ["--exchange", "layers:groups=2", "--epochs", "1000000", "--detach"];
        cluster.must("start", &[DEEP, &job].concat());
        wait_until_trains(&cluster, &led_by(&cluster));
        stop(&cluster).agreed();
        let stopped = Instant::now();
        Cluster::wait_until("a node does not end", || {
            cluster.listed().iter().all(|node| node["state"] == "idle")
        });
        assert!(stopped.elapsed() < AT_ONCE, "a node waited for {:?}", stopped.elapsed());
    }
    // The wait for a worker that does not leave a run is shorter than that.
    for node in &cluster.nodes {
        let log = node.process.log();
        assert!(!tells(&log, "worker_stuck"), "{log}");
    }
}

/// Kills a node by its name.
fn kill_named(cluster: &mut Cluster, name: &str) {
    let at = cluster.nodes.iter().position(|node| node.name == name).unwrap();
    kill_node(cluster, at);
}

#[test]
fn a_spare_node_and_one_that_comes_take_over_what_dead_ones_held() {
    let mut cluster = Cluster::of(5);
    let job = ["--exchange", "layers:groups=2", "--epochs", "1000000"];
    cluster.must("start", &[DEEP, SOON, &job, &["--detach"]].concat());
    // Nodes are assigned to pipelines in the order of their addresses.
    let mut nodes: Vec<(SocketAddr, String)> = cluster
        .nodes
        .iter()
        .map(|node| (node.address.parse().unwrap(), node.name.clone()))
        .collect();
    nodes.sort();
    // The node that the test asks must not be the spare one.
    if nodes[4].1 == cluster.nodes[0].name {
        nodes.swap(3, 4);
    }
    let [_, _, leader, follower, spare] = [0, 1, 2, 3, 4].map(|at| nodes[at].1.clone());
    wait_until_trains(&cluster, &leader);
    kill_named(&mut cluster, &follower);
    wait_for_record(&cluster, "the spare node takes no part", |record| {
        record["node"] == *spare && record["state"] == "training"
    });
    wait_until_trains_on(&cluster, &leader);
    kill_named(&mut cluster, &leader);
    let next = cluster.add(&[]).name.clone();
    wait_until_trains(&cluster, &next);
    let last = stop(&cluster).finished(4);
    let mut missing = [leader, follower];
    missing.sort();
    let mut named: Vec<&str> = last["missing"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    named.sort_unstable();
    assert_eq!(named, missing, "{last}");
    assert_is_as_good(&cluster.tau, &last);
}

#[test]
fn the_only_pipeline_that_loses_a_node_says_what_to_resume_and_is_gone_on_with() {
    let mut cluster = Cluster::of(2);
    let job = ["--exchange", "layers:groups=2", "--epochs", "400"];
    let mut client = cluster
        .tau
        .start(&cluster.asking("start", &[DEEP, SOON, &job].concat()));
    client.wait_until_trains();
    cluster.must("checkpoint", &[]);
    Cluster::wait_until("no checkpoints are written", || checkpoints(&cluster).len() == 2);
    let dead = kill_node(&mut cluster, 1);
    let output = client.finish();
    assert_eq!(output.code, 1, "{}", output.stderr);
    let run = checkpoints(&cluster)[0].split('/').nth(1).unwrap().to_owned();
    for piece in [
        format!("because {dead} cannot be reached"),
        format!("'tau start --resume {run}'"),
    ] {
        output.says(&piece);
    }

    let half = cluster.ask("start", &["--resume", &run]);
    assert_eq!(half.code, 1, "{}", half.stderr);
    let piece = "no node has a checkpoint of pipeline stage";
    half.says(piece);

    cluster.add(&[]);
    cluster.add(&[]);
    cluster.wait_for_nodes(3);
    let last = cluster.ask("start", &["--resume", &run]).trained(400 * 480);
    assert_eq!(last["nodes"], 2, "{last}");
    assert_is_as_good(&cluster.tau, &last);
}

#[test]
fn what_cannot_be_spread_is_refused() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    for (nodes, model, exchange, why) in [
        (
            "2",
            "dense 8, relu, dense 2",
            "layers:groups=3",
            "3 groups need at least 3 layers",
        ),
        (
            "2",
            "dense 8, relu, dense 4, relu, dense 2",
            "layers:groups=3",
            "there are only 2 nodes: start more nodes",
        ),
        ("2", "dense 8, batchnorm, relu, dense 2", "layers:groups=2", "groupnorm"),
        (
            "2",
            "dense 8, relu, dense 2",
            "layers:cuts=1",
            "no group can begin at layer 1",
        ),
        ("1", "dense 8, relu, dense 2", "layers", "cut into 2 pipeline stages"),
    ] {
        let run = ["train", "--nodes", nodes, "--data", "csv:points.csv", "--model", model];
        let output = tau.run(&[&run[..], &["--exchange", exchange]].concat());
        assert_ne!(output.code, 0, "{exchange}");
        assert!(output.stderr.contains(why), "{exchange}: {}", output.stderr);
    }
}
