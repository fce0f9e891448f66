//! Tests of clusters of real processes: nodes that find each other, runs that end in agreement, and nodes and clients
//! that cannot or must not take part.

use crate::harness::cluster::{Cluster, job, kill, processes_with};
use crate::harness::{Tau, kept_in, points_csv};

#[test]
fn three_nodes_agree_and_show_what_they_do() {
    let cluster = Cluster::of(3);
    let last = cluster.ask("start", &job("20", &[])).finished_by_all(3);
    assert_eq!(last["participants"].as_array().unwrap().len(), 3);
    // Every sample in every epoch, and some of them twice where two workers claimed the same shard.
    let samples = last["samples"].as_u64().unwrap();
    assert!((20 * 480..40 * 480).contains(&samples), "{last}");
    assert!(last["accuracy"].as_f64().unwrap() > 0.95, "{last}");
    assert!(last["bytes_sent"].as_u64().unwrap() > 0);
    cluster.assert_saved(&[(&last, 3)]);
    for node in cluster.listed() {
        for key in ["node", "address", "state", "device", "workers", "since", "rtt_ms"] {
            assert!(node.get(key).is_some(), "{key} is missing in {node}");
        }
    }
    let stats = cluster.must("stats", &["--once"]);
    assert_eq!(stats.stdout.lines().count(), 3, "{}", stats.stdout);
}

#[test]
fn nodes_find_each_other_in_any_order() {
    let mut cluster = Cluster::new();
    points_csv(&cluster.tau, "points.csv", 200);
    // Two nodes that join each other; no process listens at the first address of each list.
    let free = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let (a, b, nobody) = (free(), free(), free());
    cluster.start(Some(&format!("{nobody},{b}")), &a, &[]);
    cluster.start(Some(&format!("{nobody},{a}")), &b, &[]);
    // A third node knows only the second, which tells it of the first.
    cluster.start(Some(&b), "127.0.0.1:0", &[]);
    cluster.wait_for_nodes(3);
    cluster.ask("start", &job("2", &[])).finished_by_all(3);
}

#[test]
fn several_workers_of_a_node_take_part() {
    let mut cluster = Cluster::new();
    points_csv(&cluster.tau, "points.csv", 600);
    cluster.add(&["--workers", "2"]);
    cluster.add(&[]);
    Cluster::wait_until("the workers are not there", || {
        let workers = cluster.listed();
        workers.iter().filter_map(|node| node["workers"].as_u64()).sum::<u64>() == 3
    });
    cluster.ask("start", &job("5", &[])).finished_by_all(2);
}

#[test]
fn a_worker_attached_by_hand_takes_part() {
    let mut cluster = Cluster::new();
    points_csv(&cluster.tau, "points.csv", 600);
    let node = cluster.add(&["--insecure"]);
    let socket = node.dir.join(format!("{}.sock", node.name));
    let _worker = cluster
        .tau
        .start(&["worker", socket.to_str().unwrap(), "--threads", "1"]);
    let address = cluster.nodes[0].address.clone();
    let nodes = || {
        cluster
            .tau
            .run(&["nodes", "--cluster", &address, "--insecure", "--json"])
    };
    Cluster::wait_until("the worker is not there", || nodes().last()["workers"] == 2);
    let start = [
        &["start", "--cluster", &address, "--insecure", "--json"],
        &job("5", &[])[..],
    ]
    .concat();
    cluster.tau.run(&start).finished_by_all(1);
}

#[test]
fn a_run_that_is_stopped_saves_what_it_has() {
    let cluster = Cluster::of(2);
    let mut client = cluster.tau.start(&cluster.asking("start", &job("1000000", &[])));
    client.wait_until_trains();
    cluster.must("stop", &[]);
    let last = client.finish().finished_by_all(2);
    assert!(last["epochs"].as_f64().unwrap() < 1e6);
    let again = cluster.ask("stop", &[]);
    again.fails(1, "no run");
}

#[test]
fn a_client_may_die_and_another_take_over() {
    let cluster = Cluster::of(3);
    let mut client = cluster.tau.start(&cluster.asking("start", &job("400", &[])));
    assert!(client.read_line().contains("started"));
    drop(client);
    let last = cluster.ask("start", &["--attach"]).finished_by_all(3);
    cluster.assert_saved(&[(&last, 3)]);
}

#[test]
fn runs_after_each_other_do_not_mix() {
    let cluster = Cluster::of(2);
    let first = cluster.ask("start", &job("3", &[])).finished_by_all(2);
    let second = cluster
        .ask(
            "start",
            &job("3", &["--seed", "2", "--model", "dense 8, tanh, dense 2"]),
        )
        .finished_by_all(2);
    assert_ne!(first["digest"], second["digest"]);
    cluster.assert_saved(&[(&first, 2), (&second, 2)]);
}

#[test]
fn a_busy_cluster_says_so() {
    let cluster = Cluster::of(2);
    let mut client = cluster.tau.start(&cluster.asking("start", &job("1000000", &[])));
    client.read_line();
    let refused = cluster.ask("start", &job("1", &[]));
    assert_eq!(refused.code, 1);
    assert!(
        refused.last()["error"].as_str().unwrap().contains("busy with run"),
        "{}",
        refused.stderr
    );
    client.interrupt();
    client.finish().finished_by_all(2);
}

#[test]
fn a_node_with_other_data_is_named_and_the_user_decides() {
    let mut cluster = Cluster::new();
    for (folder, rows) in [("same", 600), ("other", 500)] {
        std::fs::create_dir(cluster.tau.path(folder)).unwrap();
        points_csv(&cluster.tau, &format!("{folder}/points.csv"), rows);
    }
    std::fs::create_dir(cluster.tau.path("empty")).unwrap();
    for root in ["same", "same", "other", "empty"] {
        cluster.add(&["--data-root", root]);
    }
    cluster.wait_for_nodes(4);
    let refused = cluster.ask("start", &job("2", &[]));
    assert_eq!(refused.code, 1);
    let error = refused.last()["error"].as_str().unwrap().to_string();
    for (node, says) in [(2, "holds other data"), (3, "points.csv"), (3, "--allow-partial")] {
        assert!(
            error.contains(&cluster.nodes[node].name) && error.contains(says),
            "{error}"
        );
    }
    let partial = cluster.ask("start", &job("2", &["--allow-partial"]));
    let left_out = partial.last()["left_out"].to_string();
    assert!(
        left_out.contains("holds other data") && left_out.contains("points.csv"),
        "{left_out}"
    );
    partial.finished_by_all(2);
}

#[test]
fn a_node_of_another_release_or_cluster_is_turned_away() {
    let cluster = Cluster::of(1);
    let refused = cluster.refused_node(&[("TAU_PRETEND_VERSION", "9.9.9")], &[]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("9.9.9") && refused.stderr.contains("same release"),
        "{}",
        refused.stderr
    );
    cluster.tau.run(&["credentials", "new", "other.pem"]);
    let refused = cluster.refused_node(&[], &["--credentials", "other.pem"]);
    refused.fails(1, "same credentials");
    // The refused node's worker adds no message of its own.
    assert!(!refused.stderr.contains("no node listens"), "{}", refused.stderr);
    let elsewhere = cluster.tau.run(&["seed", "--listen", "0.0.0.0:0", "--insecure"]);
    assert_eq!(elsewhere.code, 2, "{}", elsewhere.stderr);
    assert_eq!(cluster.listed().len(), 1);
}

#[test]
fn a_node_that_stops_is_gone_at_once_and_one_that_is_killed_soon() {
    let mut cluster = Cluster::of(3);
    let leaving = cluster.nodes.pop().unwrap().process;
    leaving.interrupt();
    leaving.finish().ok();
    Cluster::wait_until("it is still listed", || cluster.listed().len() == 2);
    drop(cluster.nodes.pop());
    Cluster::wait_until("its death is not noticed", || {
        cluster.listed().iter().any(|node| node["state"] == "silent")
    });
    // The workers of the killed node have ended too.
    Cluster::wait_until("workers of dead nodes are left", || {
        cluster.processes("worker").len() == 1
    });
}

#[test]
fn a_worker_that_dies_is_replaced_and_a_node_that_dies_is_missing() {
    let mut cluster = Cluster::of(3);
    let client = {
        let mut client = cluster.tau.start(&cluster.asking("start", &job("1500", &[])));
        client.read_line();
        client
    };
    let workers = cluster.processes("worker");
    kill("-KILL", workers[0]);
    Cluster::wait_until("no worker has taken its place", || {
        let now = cluster.processes("worker");
        now.len() == workers.len() && !now.contains(&workers[0])
    });
    let dead = cluster.nodes.pop().unwrap().name;
    let last = client.finish().agreed();
    assert_eq!(last["missing"], serde_json::json!([dead]), "{last}");
}

#[test]
fn a_worker_that_is_stuck_is_replaced() {
    let cluster = Cluster::of(2);
    cluster.must("start", &job("1000000", &["--detach"]));
    let workers = cluster.processes("worker");
    kill("-STOP", workers[0]);
    Cluster::wait_until("no worker has taken its place", || {
        let now = cluster.processes("worker");
        now.len() == workers.len() && !now.contains(&workers[0])
    });
    // The replacement trains: both workers stop and close their origins.
    cluster.must("stop", &[]);
    cluster.ask("start", &["--attach"]).finished_by_all(2);
}

#[test]
fn a_node_that_leaves_in_the_middle_of_a_run_does_not_hold_it_up() {
    let mut cluster = Cluster::of(3);
    let mut client = cluster.tau.start(&cluster.asking("start", &job("1500", &[])));
    client.wait_until_trains();
    let leaving = cluster.nodes.pop().unwrap();
    leaving.process.interrupt();
    leaving.process.finish().ok();
    let last = client.finish().agreed();
    assert_eq!(last["missing"], serde_json::json!([leaving.name]), "{last}");
    assert!(
        last["epochs"].as_f64().unwrap() > 1000.0,
        "the others did its share: {last}"
    );
}

#[test]
fn two_starts_at_once_end_in_one_run() {
    let cluster = Cluster::of(2);
    let arguments = job("3", &[]);
    let ask = |node: usize| {
        let address = cluster.nodes[node].address.as_str();
        let start = [
            "start",
            "--cluster",
            address,
            "--credentials",
            "cluster.pem",
            "--json",
            "--out",
        ];
        let out = if node == 0 { "one" } else { "other" };
        cluster.tau.start(&[&start, &[out][..], &arguments].concat())
    };
    let outputs = [ask(0), ask(1)].map(crate::harness::Running::finish);
    // The second client was refused, or asked after the first run had ended.
    assert!(outputs.iter().any(|output| output.code == 0));
    for output in outputs {
        let last = output.last();
        let told = last["event"] == "failed" && !last["error"].as_str().unwrap().is_empty();
        assert!(told || last["replicas_agree"] == true, "{last}");
    }
}

#[test]
fn a_local_cluster_leaves_nothing_behind() {
    let tau = Tau::new();
    let data = points_csv(&tau, "points.csv", 600);
    std::fs::create_dir(tau.path("tmp")).unwrap();
    let temporary = tau.path("tmp").to_str().unwrap().to_string();
    let environment = [("TMPDIR", temporary.as_str())];
    let mut arguments = vec!["train", "--nodes", "2", "--threads", "1", "--json", "--out", "out"];
    arguments.extend(job("1000000", &[]));
    let mut run = tau.start_with(&environment, &arguments);
    run.read_line();
    assert!(!processes_with(&temporary, "join").is_empty());
    run.interrupt();
    run.finish().finished_by_all(2);
    assert_eq!(tau.files_by_kind(), [kept_in("out"), vec![data.clone()]].concat());
    assert!(processes_with(&temporary, "").is_empty());
    // Two signals end the client at once, without a model.
    std::fs::remove_dir_all(tau.path("out")).unwrap();
    let mut run = tau.start_with(&environment, &arguments);
    run.read_line();
    run.interrupt();
    run.interrupt();
    run.finish();
    let start = std::time::Instant::now();
    while !processes_with(&temporary, "").is_empty() && start.elapsed().as_secs() < 30 {
        std::thread::yield_now();
    }
    assert!(processes_with(&temporary, "").is_empty());
    assert!(
        tau.files().iter().all(|file| file.starts_with("out/") || *file == data),
        "{:?}",
        tau.files()
    );
}
