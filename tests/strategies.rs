//! Tests of the strategies other than the default one: they train, and their replicas agree.

use crate::harness::cluster::{Cluster, SMALL, SOON, cut_power, kill};
use crate::harness::watching::{
    checkpoints, kill_node, stop, wait_until_all_train, wait_until_trains, wait_until_trains_on,
};
use crate::harness::{Tau, points_csv};

const DENSE: &[&str] = &["--exchange", "mesh:every=8,async"];

#[test]
fn dense_exchanges_train_and_agree() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    for (exchange, density) in [
        ("mesh:every=8,async", 0.5),
        ("mesh:every=8", 0.5),
        ("mesh:every=1", 0.5),
        ("mesh:every=epoch", 0.5),
        ("server", 0.5),
        ("ring-reduce", 0.5),
        ("ring", 0.5),
        ("ring:every=8", 0.5),
        ("stepwise", 0.5),
        ("downpour", 0.5),
        ("server:every=1,async", 0.5),
        // Every second batch is an announcement, which holds only a loss.
        ("mesh:every=8,weighted", 0.25),
        ("downpour:weighted", 0.25),
        ("ring:every=8,weighted", 0.25),
        // In addition only one in three of the other batches holds weights.
        ("mesh:every=8,best", 0.08),
        ("best:every=8", 0.08),
    ] {
        let run = ["train", "--nodes", "3", "--threads", "1", "--epochs", "20", "--json"];
        let output = tau.must(&[&run, SMALL, &["--exchange", exchange]].concat());
        let finished = output.last();
        assert_eq!(finished["replicas_agree"], true, "{exchange}: {finished}");
        assert!(finished["accuracy"].as_f64().unwrap() > 0.95, "{exchange}: {finished}");
        let waited = finished["waited_share"].as_f64().unwrap();
        assert_eq!(waited > 0.0, !exchange.ends_with("async"), "{exchange}: {finished}");
        // Every batch that holds weights holds nearly all of them.
        assert!(
            finished["density"].as_f64().unwrap() > density,
            "{exchange}: {finished}"
        );
        let model = finished["model"].as_str().unwrap();
        let evaluated = tau
            .run(&["evaluate", model, "--data", "csv:points.csv", "--json"])
            .last();
        assert_eq!(evaluated["accuracy"], finished["accuracy"]);
    }
}

/// Barriers wait for other workers, but not for paused or dead ones, and wait for workers that join.
#[test]
fn rounds_go_on_when_nodes_pause_join_or_die() {
    rounds_go_on("mesh:every=4");
}

/// Strategies in which a server adds rounds up, which is killed here, or in which rounds pass from worker to worker.
#[test]
fn rounds_that_are_added_up_go_on_when_nodes_pause_join_or_die() {
    for exchange in ["server:every=4", "stepwise:every=4"] {
        rounds_go_on(exchange);
    }
}

/// A strategy in which workers also wait for each other's losses.
#[test]
fn rounds_of_the_best_go_on_when_nodes_pause_join_or_die() {
    rounds_go_on("mesh:every=4,best");
}

fn rounds_go_on(exchange: &str) {
    let mut cluster = Cluster::of(3);
    let endless = ["--exchange", exchange, "--epochs", "1000000", "--detach"];
    cluster.must("start", &[SMALL, SOON, &endless].concat());
    let names: Vec<String> = cluster.nodes.iter().map(|node| node.name.clone()).collect();
    wait_until_all_train(&cluster);
    let pid = cluster.nodes[2].process.pid();
    kill("-STOP", pid);
    wait_until_trains_on(&cluster, &names[1]);
    kill("-CONT", pid);
    wait_until_trains_on(&cluster, &names[2]);
    let late = cluster.add(&[]).name.clone();
    wait_until_trains(&cluster, &late);
    // The first node, which is the server if the strategy has one.
    let dead = kill_node(&mut cluster, 0);
    wait_until_trains_on(&cluster, &late);
    wait_until_trains_on(&cluster, &names[1]);
    let is_added_up = !exchange.starts_with("mesh");
    if is_added_up {
        let records = cluster.ask("stats", &["--once"]).objects();
        let bundled: u64 = records.iter().filter_map(|record| record["bundled"].as_u64()).sum();
        assert!(bundled > 0, "{exchange}: {records:?}");
    }
    let last = stop(&cluster).agreed();
    assert_eq!(
        (&last["nodes"], &last["missing"][0]),
        (&3.into(), &dead.into()),
        "{last}"
    );
}

/// A worker's state is saved between two rounds, and the worker continues from there.
#[test]
fn rounds_go_on_after_all_nodes_were_killed() {
    for exchange in ["ring:every=4,weighted", "server:every=4"] {
        resumes(exchange);
    }
}

fn resumes(exchange: &str) {
    const NODES: usize = 3;
    let mut cluster = Cluster::of(NODES);
    let endless = ["--exchange", exchange, "--epochs", "1000000", "--detach"];
    cluster.must("start", &[SMALL, SOON, &endless].concat());
    wait_until_all_train(&cluster);
    cluster.must("checkpoint", &[]);
    Cluster::wait_until("no checkpoints are written", || checkpoints(&cluster).len() == NODES);
    while !cluster.nodes.is_empty() {
        kill_node(&mut cluster, 0);
    }
    let run = checkpoints(&cluster)[0].split('/').nth(1).unwrap().to_owned();
    for _ in 0..NODES {
        cluster.add(&[]);
    }
    cluster.wait_for_nodes(NODES);
    cluster.must("start", &["--resume", &format!("tau-node/{run}"), "--detach"]);
    wait_until_all_train(&cluster);
    stop(&cluster).finished(NODES);
}

#[test]
fn a_dense_exchange_survives_a_death() {
    let mut cluster = Cluster::of(3);
    let endless = [SMALL, SOON, DENSE, &["--epochs", "1000000", "--max-seconds", "3"]].concat();
    let mut client = cluster.tau.start(&cluster.asking("start", &endless));
    client.wait_until_trains();
    let victim = cluster.nodes.pop().unwrap();
    cut_power(victim.process.pid(), victim.dir.to_str().unwrap());
    let finished = client.finish().agreed();
    assert_eq!(finished["missing"][0], victim.name.as_str(), "{finished}");
}

#[test]
fn a_strategy_without_a_tau_takes_none() {
    let tau = Tau::new();
    let output = tau.run(&["train", "--exchange", "mesh", "--density", "0.1"]);
    output.fails(2, "leave density out");
    let output = tau.run(&["train", "--exchange", "gossip"]);
    assert!(
        output
            .stderr
            .contains("strom, mesh, server, ring-reduce, ring, stepwise, downpour, best, WAY[:every=N|epoch]"),
        "{}",
        output.stderr
    );
}
