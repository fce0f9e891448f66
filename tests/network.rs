//! Nodes on different hosts, with a cable between them that comes loose. Needs root; skipped, visibly, without.

use std::fs::File;
use std::process::Command;

use serde_json::Value;

use crate::harness::cluster::{Cluster, kill, processes_with};
use crate::harness::netlab::Netlab;
use crate::harness::{Running, Tau, points_csv};

fn command(lab: &Netlab, tau: &Tau, host: usize, arguments: &[&str]) -> Command {
    let mut command = lab.command(host, env!("CARGO_BIN_EXE_tau"));
    command.args(arguments).current_dir(tau.path("")).env("TAU_LOG", "info");
    command
}

/// Starts the binary on a host of the lab.
fn on(lab: &Netlab, tau: &Tau, host: usize, arguments: &[&str]) -> Running {
    Tau::spawn(&mut command(lab, tau, host, arguments))
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
    // Both train on, for so long that what the other has missed is worth merging.
    for (host, address) in [(1, &seed), (2, &other)] {
        let asking = [
            "stats",
            "--once",
            "--cluster",
            address,
            "--credentials",
            "cluster.pem",
            "--json",
        ];
        Cluster::wait_until("one side does not train on", || {
            let output = on(&lab, &tau, host, &asking).finish();
            let records = output
                .stdout
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap());
            let lag = |record: Value| record["peers"][0]["lag"].as_u64();
            records.filter_map(lag).max() > Some(5000)
        });
    }
    lab.mend(2);
    Cluster::wait_until("they do not find each other again", || {
        listed().iter().all(|node| !away(node))
    });
    for node in [&one, &two] {
        Cluster::wait_until("nothing comes merged", || {
            node.log().contains("a range of batches is taken")
        });
        assert!(!node.log().contains("gets a snapshot"), "nothing is forgotten");
    }
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

#[test]
fn a_guest_whose_hosts_die_before_it_has_a_snapshot_is_free_again() {
    // Slow enough for the giver to be killed in the middle of it.
    let Some(lab) = Netlab::up(2, "4mbit") else {
        return;
    };
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    tau.run(&["credentials", "new", "cluster.pem"]);
    let (seed, other) = (Netlab::address(1) + ":7700", Netlab::address(2) + ":7700");
    let node = ["--credentials", "cluster.pem", "--threads", "1", "--json", "--listen"];
    let start = |host, log: &str, arguments: &[&str], address: &str| {
        let arguments = [arguments, &node[..], &[address]].concat();
        let log = File::create(tau.path(log)).unwrap();
        let mut process = Tau::spawn_with(&mut command(&lab, &tau, host, &arguments), log);
        first_line(&mut process);
        process
    };
    let says = |log: &str, words: &str| std::fs::read_to_string(tau.path(log)).unwrap().contains(words);
    let asking = |address| ["--cluster", address, "--credentials", "cluster.pem", "--json"];
    let run = |host, command: &str, arguments: &[&str]| {
        let address = if host == 1 { &seed } else { &other };
        let output = on(
            &lab,
            &tau,
            host,
            &[&[command], &asking(address)[..], arguments].concat(),
        )
        .finish();
        assert_eq!(output.code, 0, "{}", output.stderr);
        output
    };
    let one = start(1, "one.log", &["seed", "--dir", "one"], &seed);
    let ready = |host| run(host, "nodes", &[]).stdout.contains("\"workers\":1");
    Cluster::wait_until("the node has no worker", || ready(1));
    let long = [
        "--model",
        "dense 800, relu, dense 10",
        "--epochs",
        "1000000",
        "--detach",
    ];
    run(1, "start", &long);
    let _two = start(2, "two.log", &["join", &seed, "--dir", "two"], &other);
    Cluster::wait_until("no snapshot is given", || says("one.log", "gets a snapshot"));
    kill("-KILL", one.pid());
    for worker in processes_with(tau.path("one").to_str().unwrap(), "worker") {
        kill("-KILL", worker);
    }
    Cluster::wait_until("the guest waits for ever", || {
        says("two.log", "all who had something of it are gone")
    });
    let short = ["--data", "csv:points.csv", "--model", "dense 2", "--epochs", "1"];
    let last = run(2, "start", &short).last();
    assert_eq!(
        (&last["nodes"], &last["replicas_agree"]),
        (&1.into(), &true.into()),
        "{last}"
    );
}
