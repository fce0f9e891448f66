//! Tests of commands whose output has no reader any more, as with `| head -1`: no command panics.

use crate::harness::cluster::Cluster;
use crate::harness::watching::wait_until_trains;
use crate::harness::{TRAIN_POINTS, Tau, points_csv};

#[test]
fn commands_on_a_cluster_outlive_their_readers() {
    let cluster = Cluster::training(1);
    wait_until_trains(&cluster, &cluster.nodes[0].name);
    let asked: [(&str, &[&str]); 9] = [
        ("nodes", &[]),
        ("nodes", &["--json"]),
        ("stats", &["--once"]),
        // This command prints for ever: only the missing reader ends it.
        ("stats", &[]),
        ("stats", &["--json"]),
        ("doctor", &[]),
        ("checkpoint", &[]),
        ("stop", &[]),
        ("start", &["--attach"]),
    ];
    for (command, flags) in asked {
        let mut words = cluster.asking(command, &[]);
        words.retain(|word| *word != "--json");
        let code = cluster.tau.run_unread(&[&words, flags].concat());
        assert_eq!(code, 0, "{command} {flags:?}");
    }
}

#[test]
fn commands_of_one_machine_outlive_their_readers() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 60);
    let model = "tau-out/latest/model.safetensors";
    let commands: [&[&str]; 10] = [
        &TRAIN_POINTS,
        &["evaluate", model, "--confusion"],
        &["predict", model, "--data", "csv:points.csv"],
        &["show", model],
        &["report", "tau-out"],
        &["export", model, "--onnx", "model.onnx"],
        &["version"],
        &["completions", "bash"],
        &["credentials", "new", "cluster.pem"],
        &["token", "--cluster", "127.0.0.1:7700", "--credentials", "cluster.pem"],
    ];
    for command in commands {
        assert_eq!(tau.run_unread(command), 0, "{command:?}");
    }
    assert_eq!(
        tau.run_unread(&["show", "nowhere"]),
        2,
        "an error that nobody reads is one"
    );
    assert_eq!(tau.run_unread(&["train", "--no-such-flag"]), 2);
}
