//! Tests that files of an older release can be read: those in `tests/older` were written by version 0.1.0 at commit
//! 3317eda.

use std::path::Path;
use std::process::Command;

use crate::harness::Tau;
use crate::harness::cluster::Cluster;

/// The run during which the older release's node was killed, after a checkpoint.
const RUN: &str = "895f5b50329d3c14";
const DATA: &str = "csv:points.csv?label=-1&test=0.2";

/// Copies the older files to the folder in which `tau` runs.
fn unpack(tau: &Tau) {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/older");
    for entry in std::fs::read_dir(files).unwrap() {
        let copied = Command::new("cp")
            .arg("-r")
            .arg(entry.unwrap().path())
            .arg(tau.path(""))
            .status();
        assert!(copied.unwrap().success());
    }
}

#[test]
fn a_model_a_run_folder_a_study_and_a_job_file_of_an_older_release_are_read() {
    let tau = Tau::new();
    unpack(&tau);
    let evaluated = tau
        .must(&["evaluate", "run/model.safetensors", "--data", DATA, "--json"])
        .last();
    let then: serde_json::Value = serde_json::from_slice(&std::fs::read(tau.path("run/result.json")).unwrap()).unwrap();
    assert_eq!(evaluated["accuracy"], then["accuracy"]);
    let shown = tau.must(&["show", "run/model.safetensors", "--json"]).last();
    assert_eq!(shown["weights"], 82);
    for folder in ["run", "study"] {
        let report = tau.must(&["report", folder, "--out", "report", "--json"]).last();
        assert_eq!(report["event"], "report");
    }
    tau.run(&["train", "job.toml", "--nodes", "1", "--epochs", "1", "--json"])
        .finished(1);
}

#[test]
fn a_run_goes_on_from_a_checkpoint_of_an_older_release() {
    let mut cluster = Cluster::new();
    unpack(&cluster.tau);
    let dir = cluster.next_dir();
    std::fs::rename(cluster.tau.path("node"), cluster.tau.path(&dir)).unwrap();
    cluster.add(&[]);
    cluster.wait_for_nodes(1);
    cluster.must("start", &["--resume", RUN, "--detach"]);
    cluster.must("stop", &[]);
    let last = cluster.ask("start", &["--attach", "--json"]).finished(1);
    assert!(last["samples"].as_u64() > Some(480), "{last}");
}
