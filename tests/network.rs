//! Nodes on different hosts, with a cable between them that comes loose. Needs root; skipped, visibly, without.

use serde_json::Value;

use crate::harness::cluster::Cluster;
use crate::harness::netlab::Netlab;
use crate::harness::{Running, Tau, points_csv};

/// Starts the binary on a host of the lab.
fn on(lab: &Netlab, tau: &Tau, host: usize, arguments: &[&str]) -> Running {
    let mut command = lab.command(host, env!("CARGO_BIN_EXE_tau"));
    command.args(arguments).current_dir(tau.path(""));
    Tau::spawn(&mut command)
}

fn first_line(process: &mut Running) -> Value {
    serde_json::from_str(&process.read_line()).unwrap()
}

#[test]
fn a_cable_that_comes_loose_and_is_put_back_costs_nothing() {
    let Some(lab) = Netlab::up(2, "100mbit") else {
        return;
    };
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    tau.run(&["credentials", "new", "cluster.pem"]);
    let (seed, other) = (Netlab::address(1) + ":7700", Netlab::address(2) + ":7700");
    let node = ["--credentials", "cluster.pem", "--threads", "1", "--json", "--listen"];
    let mut one = on(
        &lab,
        &tau,
        1,
        &[&["seed", "--dir", "one"], &node[..], &[&seed]].concat(),
    );
    first_line(&mut one);
    let mut two = on(
        &lab,
        &tau,
        2,
        &[&["join", &seed, "--dir", "two"], &node[..], &[&other]].concat(),
    );
    first_line(&mut two);
    let cluster = ["--cluster", &seed, "--credentials", "cluster.pem", "--json"];
    let listed = || {
        let output = on(&lab, &tau, 1, &[&["nodes"], &cluster[..]].concat()).finish();
        output
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect::<Vec<Value>>()
    };
    let ready = |node: &Value| node["state"] != "away" && node["workers"] == 1;
    Cluster::wait_until("the nodes are not there", || {
        let nodes = listed();
        nodes.len() == 2 && nodes.iter().all(ready)
    });
    let job = [
        "--data",
        "csv:points.csv",
        "--model",
        "dense 16, relu, dense 2",
        "--density",
        "0.05",
    ];
    let start = [&["start", "--epochs", "1000000"], &cluster[..], &job].concat();
    let mut client = on(&lab, &tau, 1, &start);
    client.read_line();
    client.read_line();
    lab.cut(2);
    let away = |node: &Value| node["state"] == "away";
    Cluster::wait_until("nobody notices the cut", || listed().iter().any(away));
    lab.mend(2);
    Cluster::wait_until("they do not find each other again", || {
        listed().iter().all(|node| !away(node))
    });
    on(&lab, &tau, 1, &[&["stop"], &cluster[..]].concat()).finish();
    let output = client.finish();
    assert_eq!(output.code, 0, "{}", output.stderr);
    let last = output.last();
    assert_eq!(last["replicas_agree"], true, "{last}");
    assert_eq!(
        (&last["nodes"], &last["missing"]),
        (&2.into(), &Value::Array(vec![])),
        "{last}"
    );
}
