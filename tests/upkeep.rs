//! Tests of a node's upkeep: other nodes hear when it leaves, its socket is restored when its folder is removed, and
//! old runs are deleted.

use serde_json::Value;

use crate::harness::cluster::{Cluster, Node, job, kill};
use crate::harness::watching::{stop, wait_until_trains_on};
use crate::harness::{event_lines, points_csv, tells};

#[test]
fn a_node_that_is_told_to_end_in_a_run_has_left_and_is_not_silent() {
    let mut cluster = Cluster::training(3);
    let leaver = cluster.nodes.pop().unwrap();
    kill("-TERM", leaver.process.pid());
    leaver.process.finish().ok();
    // On a busy machine any node may fall silent for a while; this one has said good-bye.
    let said_before: Vec<usize> = cluster.nodes.iter().map(|node| node.process.log().len()).collect();
    // The node ended after all others had heard its good-bye, so no wait is needed.
    assert_eq!(cluster.listed().len(), 2);
    for (node, said_before) in cluster.nodes.iter().zip(said_before) {
        Cluster::wait_until("nobody hears that it leaves", || {
            tells(&node.process.log(), "node_left")
        });
        let log = node.process.log();
        let silent = event_lines(&log[said_before..], "node_silent");
        assert!(!silent.iter().any(|line| line.contains(&leaver.name)), "{log}");
    }
}

#[test]
fn workers_attach_again_when_the_nodes_folder_was_removed() {
    let cluster = Cluster::training(1);
    let node = &cluster.nodes[0];
    std::fs::remove_dir_all(&node.dir).unwrap();
    let dead = node.worker();
    kill("-KILL", dead);
    // A worker that finds no socket ends and is restarted.
    Cluster::wait_until(
        "no worker attaches any more",
        || matches!(node.workers()[..], [worker] if worker != dead),
    );
    wait_until_trains_on(&cluster, &node.name);
    stop(&cluster).agreed();
}

#[test]
fn nodes_keep_what_they_took_part_in_and_remove_the_oldest_runs() {
    let mut cluster = Cluster::new();
    cluster.add(&["--keep-runs", "2"]);
    cluster.add(&[]);
    cluster.wait_for_nodes(2);
    points_csv(&cluster.tau, "points.csv", 600);
    let mut runs = Vec::new();
    for _ in 0..3 {
        let ended = cluster.must("start", &job("3", &[]));
        let run = ended.last()["run"].as_str().unwrap().to_owned();
        // Nodes check once a second; of runs that follow each other faster they keep only the models.
        let report = |node: &Node| node.dir.join(&run).join("report.html").exists();
        Cluster::wait_until("a run is not kept", || cluster.nodes.iter().all(report));
        runs.push(run);
    }
    let kept = |node: usize, run: &str, name: &str| cluster.nodes[node].dir.join(run).join(name);
    assert!(!kept(0, &runs[0], "").exists() && kept(1, &runs[0], "result.json").exists());
    for run in &runs[1..] {
        for name in ["job.toml", "result.json", "metrics.jsonl", "events.jsonl"] {
            assert!(kept(0, run, name).exists(), "{name}");
        }
    }
    let text = std::fs::read_to_string(kept(0, &runs[2], "events.jsonl")).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = |text: &str| {
        events
            .iter()
            .any(|event| event["text"].as_str().is_some_and(|said| said.contains(text)))
    };
    assert!(
        said("a run begins") && events.iter().any(|event| event["event"] == "finished"),
        "{text}"
    );
}
