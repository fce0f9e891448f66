//! Tests of datasets of all sizes and kinds: every sample is trained, whatever the shape of a run, and only regular
//! files are opened.

use std::process::Command;

use crate::harness::cluster::{Cluster, job, kill};
use crate::harness::watching::wait_for_record;
use crate::harness::{Tau, event_lines, points_csv, tells};

#[test]
fn few_samples_among_many_workers_with_large_minibatches_are_all_trained() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 150);
    for shape in [
        ["--nodes", "5", "--workers", "1", "--minibatch", "256"],
        ["--nodes", "1", "--workers", "6", "--minibatch", "128"],
    ] {
        let job = ["--data", "csv:points.csv", "--model", "dense 2", "--epochs", "3"];
        let arguments = [&["train", "--json"], &job[..], &shape[..]].concat();
        let output = tau.run_with(&[("TAU_LOG", "warn")], &arguments);
        output.trained(360);
        assert!(!tells(&output.stderr, "batch_rejected"), "{}", output.stderr);
    }
}

#[test]
fn a_worker_is_seated_after_many_epochs_of_few_samples() {
    let mut cluster = Cluster::of(1);
    points_csv(&cluster.tau, "points.csv", 40);
    cluster.must("start", &job("1000000", &["--minibatch", "32", "--detach"]));
    wait_for_record(&cluster, "it does not train", |record| {
        record["samples"].as_u64() > Some(32 * 2_000)
    });
    let dead = cluster.processes("worker")[0];
    kill("-KILL", dead);
    Cluster::wait_until("no worker has taken its place", || {
        cluster.processes("worker").first().is_some_and(|&new| new != dead)
    });
    wait_for_record(&cluster, "the new worker does not train", |record| {
        record["samples_per_second"].as_f64() > Some(0.0)
    });
    cluster.must("stop", &[]);
    let ended = cluster.must("start", &["--attach"]);
    assert_eq!(ended.last()["repeated_samples"], 0, "{}", ended.stdout);
    let logged = cluster.nodes.pop().unwrap().stop();
    // The killed worker may have been in the middle of a message; no other worker's socket is closed.
    let closed = event_lines(&logged, "worker_socket_closed");
    let by_the_kill = |line: &&str| line.contains("the connection broke");
    assert!(closed.len() < 2 && closed.iter().all(by_the_kill), "{logged}");
}

#[test]
fn what_is_no_file_is_not_opened_and_the_next_run_begins() {
    let cluster = Cluster::of(1);
    points_csv(&cluster.tau, "points.csv", 100);
    let made = Command::new("mkfifo")
        .arg(cluster.tau.path("pipe.csv"))
        .status()
        .unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink("/dev/zero", cluster.tau.path("zero.csv")).unwrap();
    for (data, says) in [
        ("csv:pipe.csv", "is a pipe: give a regular file"),
        // Nodes open only files below their own folder, unless the user gives another data root.
        ("csv:zero.csv", "lies outside of the data directory"),
        ("csv:/dev/zero", "--data-root / opens everything"),
        ("csv:/etc/passwd", "lies outside of the data directory"),
        ("csv:.", "is a folder"),
    ] {
        let refused = cluster.ask("start", &job("1", &["--data", data]));
        let error = refused.last()["error"].to_string();
        assert!(refused.code == 1 && error.contains(says), "{data}: {error}");
    }
    cluster.ask("start", &job("2", &[])).trained(160);
}

#[test]
fn a_user_trains_on_files_of_theirs_wherever_they_are() {
    let (tau, elsewhere) = (Tau::new(), Tau::new());
    points_csv(&elsewhere, "points.csv", 100);
    let absolute = format!("csv:{}", elsewhere.path("points.csv").display());
    std::os::unix::fs::symlink(elsewhere.path("points.csv"), tau.path("link.csv")).unwrap();
    let arguments = |data| {
        let shape = ["train", "--json", "--model", "dense 2", "--epochs", "2", "--nodes", "2"];
        [&shape[..], &["--data", data]].concat()
    };
    for data in [&absolute, "csv:link.csv"] {
        tau.run(&arguments(data)).trained(160);
    }
    let kept = [&arguments(&absolute)[..], &["--data-root", "."]].concat();
    let refused = tau.run(&kept);
    refused.fails(2, "lies outside");
    let zero = tau.run(&arguments("csv:/dev/zero"));
    zero.fails(2, "is a device");
}
