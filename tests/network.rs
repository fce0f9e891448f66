//! Tests of nodes on virtual hosts whose cables are cut or slow. Needs root; skipped with a message without.

use serde_json::Value;

use crate::harness::cluster::{Cluster, SMALL, cut_power, job};
use crate::harness::netlab::Netlab;
use crate::harness::{Running, Tau, points_csv, tells, words};

/// Starts the binary on a host of the lab.
fn on(lab: &Netlab, tau: &Tau, host: usize, arguments: &[&str]) -> Running {
    let mut command = lab.command(host, env!("CARGO_BIN_EXE_tau"));
    command.args(arguments).current_dir(tau.path("")).env("TAU_LOG", "info");
    Tau::spawn(&mut command)
}

fn address(host: usize) -> String {
    Netlab::address(host) + ":7700"
}

/// Creates a folder with credentials and a small dataset.
fn folder() -> Tau {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    tau.run(&["credentials", "new", "cluster.pem"]);
    tau
}

/// Starts the node of a host: the first is the seed, the others join it.
fn node(lab: &Netlab, tau: &Tau, host: usize) -> Running {
    let (seed, listen, dir) = (address(1), address(host), format!("node{host}"));
    let plan = if host == 1 { vec!["seed"] } else { vec!["join", &seed] };
    let flags = ["--credentials", "cluster.pem", "--threads", "1", "--json"];
    let place = ["--dir", &dir, "--listen", &listen];
    let mut process = on(lab, tau, host, &[&plan[..], &flags, &place].concat());
    process.read_line();
    process
}

fn wait_for_nodes(lab: &Netlab, tau: &Tau, count: usize) {
    let ready = |node: &Value| node["state"] != "silent" && node["workers"] == 1;
    Cluster::wait_until("the nodes are not there", || {
        let listed = ask(lab, tau, 1, &["nodes"]);
        listed.len() == count && listed.iter().all(ready)
    });
}

/// Nodes on the hosts of a lab, with a run under way that does not end by itself.
pub(crate) struct Training {
    pub(crate) nodes: Vec<Running>,
    pub(crate) lab: Netlab,
    tau: Tau,
}

impl Training {
    pub(crate) fn on(lab: Netlab, hosts: usize) -> Self {
        Self::with(lab, hosts, &job("1000000", &["--detach"]))
    }

    /// Starts nodes on the hosts of a lab, and a run of this job.
    fn with(lab: Netlab, hosts: usize, job: &[&str]) -> Self {
        let tau = folder();
        let nodes: Vec<Running> = (1..=hosts).map(|host| node(&lab, &tau, host)).collect();
        wait_for_nodes(&lab, &tau, hosts);
        let started = ask(&lab, &tau, 1, &[&["start"], job].concat());
        assert!(started.iter().all(|line| line["error"].is_null()), "{started:?}");
        Self { nodes, lab, tau }
    }

    /// Runs a command that asks the node of a host, and returns the lines of its output.
    pub(crate) fn ask(&self, host: usize, command: &[&str]) -> Vec<Value> {
        ask(&self.lab, &self.tau, host, command)
    }

    /// Returns true if the first node lists a silent node.
    fn any_is_silent(&self) -> bool {
        self.ask(1, &["nodes"]).iter().any(|node| node["state"] == "silent")
    }

    /// Stops the run, and asserts that all nodes agreed on its end.
    fn stop(self) {
        let nodes = self.nodes.len();
        self.ask(1, &["stop"]);
        let events = self.ask(1, &["start", "--attach"]);
        let last = events.last().unwrap();
        assert_eq!(last["replicas_agree"], true, "{last}");
        let (there, missing) = (&last["nodes"], &last["missing"]);
        assert_eq!((there, missing), (&nodes.into(), &Value::Array(vec![])), "{last}");
    }
}

fn ask(lab: &Netlab, tau: &Tau, host: usize, command: &[&str]) -> Vec<Value> {
    let address = address(host);
    let cluster = ["--cluster", &address, "--credentials", "cluster.pem", "--json"];
    on(lab, tau, host, &[command, &cluster[..]].concat()).finish().objects()
}

#[test]
fn both_sides_of_a_cut_cable_train_on_and_get_what_they_missed_as_ranges() {
    let Some(lab) = Netlab::up(2, "100mbit") else {
        return;
    };
    let training = Training::on(lab, 2);
    training.lab.cut(2);
    Cluster::wait_until("nobody notices the cut", || training.any_is_silent());
    // Until each side has missed enough batches that merging them is worthwhile.
    for host in [1, 2] {
        Cluster::wait_until("one side does not train on", || {
            let records = training.ask(host, &["stats", "--once"]).into_iter();
            records.filter_map(|record| record["peers"][0]["lag"].as_u64()).max() > Some(5000)
        });
    }
    training.lab.mend(2);
    Cluster::wait_until("they do not find each other again", || !training.any_is_silent());
    for node in &training.nodes {
        Cluster::wait_until("nothing comes merged", || tells(&node.log(), "range_applied"));
        assert!(!tells(&node.log(), "snapshot_started"), "nothing is forgotten");
    }
    training.stop();
}

/// Barriers wait for all workers, except those of silent nodes.
#[test]
fn both_sides_of_a_cut_cable_make_rounds_and_both_count() {
    sides_make_rounds("mesh:every=4,weighted");
}

/// Strategies that add rounds up along a reduction path, which the cut breaks.
#[test]
fn both_sides_of_a_cut_cable_add_up_rounds_and_both_count() {
    for exchange in ["ring:every=4", "server:every=4,weighted"] {
        sides_make_rounds(exchange);
    }
}

fn sides_make_rounds(exchange: &str) {
    let Some(lab) = Netlab::up(3, "100mbit") else {
        return;
    };
    let endless = ["--exchange", exchange, "--epochs", "1000000", "--detach"];
    let training = Training::with(lab, 3, &[SMALL, &endless].concat());
    let samples = |host: usize| {
        let records = training.ask(host, &["stats", "--once"]).into_iter();
        records
            .filter_map(|record| record["samples"].as_u64())
            .max()
            .unwrap_or_default()
    };
    training.lab.cut(3);
    Cluster::wait_until("nobody notices the cut", || training.any_is_silent());
    for host in [1, 3] {
        let before = samples(host);
        Cluster::wait_until("one side makes no rounds", || samples(host) > before + 2000);
    }
    training.lab.mend(3);
    Cluster::wait_until("they do not find each other again", || !training.any_is_silent());
    let before = samples(1);
    Cluster::wait_until("together they make no rounds", || samples(1) > before + 2000);
    training.stop();
}

#[test]
fn cables_that_flap_and_links_that_are_deaf_on_one_side_cost_nothing() {
    let Some(lab) = Netlab::up(3, "100mbit") else {
        return;
    };
    let training = Training::on(lab, 3);
    let samples = || {
        let records = training.ask(3, &["stats", "--once"]).into_iter();
        records.filter_map(|record| record["samples"].as_u64()).sum::<u64>()
    };
    let train_on = |what: &str| {
        let before = samples();
        Cluster::wait_until(what, || samples() > before + 50_000);
    };
    training.lab.deafen(1, 2);
    train_on("nobody trains while 1 does not hear 2");
    for _ in 0..20 {
        training.lab.cut(3);
        training.lab.mend(3);
    }
    train_on("nobody trains after a cable has flapped");
    training.lab.unblock(1, 2);
    Cluster::wait_until("they do not find each other again", || !training.any_is_silent());
    train_on("nobody trains when all is well again");
    training.stop();
}

#[test]
fn a_guest_whose_hosts_die_before_it_has_a_snapshot_is_free_again() {
    // Slow enough that the sender can be killed half-way through the snapshot.
    let Some(lab) = Netlab::up(2, "4mbit") else {
        return;
    };
    let tau = folder();
    let one = node(&lab, &tau, 1);
    wait_for_nodes(&lab, &tau, 1);
    let long = words("--model 'dense 800, relu, dense 10' --epochs 1000000 --detach");
    ask(&lab, &tau, 1, &[&["start"], &long[..]].concat());
    let two = node(&lab, &tau, 2);
    Cluster::wait_until("no snapshot is given", || tells(&one.log(), "snapshot_started"));
    cut_power(one.pid(), tau.path("node1").to_str().unwrap());
    Cluster::wait_until("the guest waits for ever", || tells(&two.log(), "run_withdrawn"));
    let short = ["--data", "csv:points.csv", "--model", "dense 2", "--epochs", "1"];
    let events = ask(&lab, &tau, 2, &[&["start"], &short[..]].concat());
    let last = events.last().unwrap();
    assert_eq!(
        (&last["nodes"], &last["replicas_agree"]),
        (&1.into(), &true.into()),
        "{last}"
    );
}
