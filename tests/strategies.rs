//! Strategies other than the default one, on the same runtime: they train, and their replicas agree.

use crate::harness::cluster::{Cluster, SMALL, cut_power};
use crate::harness::{Tau, points_csv};

const DENSE: &[&str] = &["--exchange", "dense:every=8"];

#[test]
fn a_dense_exchange_trains_and_agrees() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    let run = ["train", "--nodes", "3", "--threads", "1", "--epochs", "20", "--json"];
    let output = tau.run(&[&run, SMALL, DENSE].concat());
    assert_eq!(output.code, 0, "{}", output.stderr);
    let finished = output.last();
    assert_eq!(finished["replicas_agree"], true, "{finished}");
    assert!(finished["accuracy"].as_f64().unwrap() > 0.95, "{finished}");
    // Nearly every weight is in every batch.
    assert!(finished["density"].as_f64().unwrap() > 0.5, "{finished}");
    let model = finished["model"].as_str().unwrap();
    let evaluated = tau
        .run(&["evaluate", model, "--data", "csv:points.csv", "--json"])
        .last();
    assert_eq!(evaluated["accuracy"], finished["accuracy"]);
}

#[test]
fn a_dense_exchange_survives_a_death() {
    let mut cluster = Cluster::of(3);
    points_csv(&cluster.tau, "points.csv", 600);
    let endless = [SMALL, DENSE, &["--epochs", "1000000", "--max-seconds", "3"]].concat();
    let mut client = cluster.tau.start(&cluster.asking("start", &endless));
    client.wait_until_trains();
    let victim = cluster.nodes.pop().unwrap();
    cut_power(victim.process.pid(), victim.dir.to_str().unwrap());
    let output = client.finish();
    assert_eq!(output.code, 0, "{}", output.stderr);
    let finished = output.last();
    assert_eq!(finished["replicas_agree"], true, "{finished}");
    assert_eq!(finished["missing"][0], victim.name.as_str(), "{finished}");
}

#[test]
fn a_strategy_without_a_tau_takes_none() {
    let tau = Tau::new();
    let output = tau.run(&["train", "--exchange", "dense", "--density", "0.1"]);
    assert_eq!(output.code, 2, "{}", output.stderr);
    assert!(output.stderr.contains("leave density out"), "{}", output.stderr);
    let output = tau.run(&["train", "--exchange", "gossip"]);
    assert!(output.stderr.contains("strom, dense[:every=N]"), "{}", output.stderr);
}
