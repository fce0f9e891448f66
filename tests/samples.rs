//! Data of all sizes and kinds: every sample is trained, whatever the shape of a run, and only files are opened.

use std::process::Command;

use serde_json::Value;

use crate::harness::cluster::{Cluster, job, kill};
use crate::harness::{Output, Tau, event_lines, points_csv, tells};

/// The last object of a run that trained every sample so many times in all; those that two workers claimed are told.
fn trained_all(output: &Output, samples: u64) -> Value {
    assert_eq!(output.code, 0, "{}", output.stderr);
    let last = output.last();
    assert_eq!(last["replicas_agree"], true, "{last}");
    let number = |name: &str| last[name].as_u64().unwrap();
    assert_eq!(number("samples") - number("repeated_samples"), samples, "{last}");
    last
}

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
        trained_all(&output, 360);
        assert!(!tells(&output.stderr, "batch_rejected"), "{}", output.stderr);
    }
}

#[test]
fn a_worker_is_seated_after_many_epochs_of_few_samples() {
    let mut cluster = Cluster::of(1);
    points_csv(&cluster.tau, "points.csv", 40);
    let started = cluster.ask("start", &job("1000000", &["--minibatch", "32", "--detach"]));
    assert_eq!(started.code, 0, "{}", started.stderr);
    Cluster::wait_until("it does not train", || {
        let stats = cluster.ask("stats", &["--once"]).last();
        stats["samples"].as_u64().is_some_and(|samples| samples > 32 * 2_000)
    });
    let dead = cluster.processes("worker")[0];
    kill("-KILL", dead);
    Cluster::wait_until("no worker has taken its place", || {
        cluster.processes("worker").first().is_some_and(|&new| new != dead)
    });
    Cluster::wait_until("the new worker does not train", || {
        let stats = cluster.ask("stats", &["--once"]).last();
        stats["samples_per_second"].as_f64().is_some_and(|speed| speed > 0.0)
    });
    assert_eq!(cluster.ask("stop", &[]).code, 0);
    let ended = cluster.ask("start", &["--attach"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.last()["repeated_samples"], 0, "{}", ended.stdout);
    let logged = cluster.nodes.pop().unwrap().stop();
    // The one that was killed may have been in the middle of a word; nobody else's socket is closed.
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
        // Nodes open nothing but what is below their own folder, unless they are told.
        ("csv:zero.csv", "lies outside of the data directory"),
        ("csv:/dev/zero", "--data-root / opens everything"),
        ("csv:/etc/passwd", "lies outside of the data directory"),
        ("csv:.", "is a folder"),
    ] {
        let refused = cluster.ask("start", &job("1", &["--data", data]));
        let error = refused.last()["error"].to_string();
        assert!(refused.code == 1 && error.contains(says), "{data}: {error}");
    }
    trained_all(&cluster.ask("start", &job("2", &[])), 160);
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
        trained_all(&tau.run(&arguments(data)), 160);
    }
    let kept = [&arguments(&absolute)[..], &["--data-root", "."]].concat();
    let refused = tau.run(&kept);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("lies outside"), "{}", refused.stderr);
    let zero = tau.run(&arguments("csv:/dev/zero"));
    assert!(zero.code == 2 && zero.stderr.contains("is a device"), "{}", zero.stderr);
}
