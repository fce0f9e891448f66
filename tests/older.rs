//! Files of an older release are read: those in `tests/older`, which version 0.1.0 of commit 3317eda has written.

use std::path::Path;
use std::process::Command;

use crate::harness::cluster::Cluster;
use crate::harness::{Output, Tau};

/// The run that the older release's node was killed in, after a checkpoint.
const RUN: &str = "895f5b50329d3c14";
const DATA: &str = "csv:points.csv?label=-1&test=0.2";

/// Copies the files to where `tau` runs.
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

fn fine(output: Output) -> Output {
    assert_eq!(output.code, 0, "{}", output.stderr);
    output
}

/// How the run of one node ended.
fn finished(output: Output) -> serde_json::Value {
    let last = fine(output).last();
    assert_eq!(last["event"], "finished", "{last}");
    last
}

#[test]
fn a_model_a_run_folder_a_study_and_a_job_file_of_an_older_release_are_read() {
    let tau = Tau::new();
    unpack(&tau);
    let evaluated = fine(tau.run(&["evaluate", "run/model.safetensors", "--data", DATA, "--json"])).last();
    let then: serde_json::Value = serde_json::from_slice(&std::fs::read(tau.path("run/result.json")).unwrap()).unwrap();
    assert_eq!(evaluated["accuracy"], then["accuracy"]);
    let shown = fine(tau.run(&["show", "run/model.safetensors", "--json"])).last();
    assert_eq!(shown["weights"], 82);
    for folder in ["run", "study"] {
        let report = fine(tau.run(&["report", folder, "--out", "report", "--json"])).last();
        assert_eq!(report["event"], "report");
    }
    finished(tau.run(&["train", "job.toml", "--nodes", "1", "--epochs", "1", "--json"]));
}

#[test]
fn a_run_goes_on_from_a_checkpoint_of_an_older_release() {
    let mut cluster = Cluster::new();
    unpack(&cluster.tau);
    let dir = cluster.next_dir();
    std::fs::rename(cluster.tau.path("node"), cluster.tau.path(&dir)).unwrap();
    cluster.add(&[]);
    cluster.wait_for_nodes(1);
    fine(cluster.ask("start", &["--resume", RUN, "--detach", "--json"]));
    assert_eq!(cluster.ask("stop", &[]).code, 0);
    let last = finished(cluster.ask("start", &["--attach", "--json"]));
    assert!(last["samples"].as_u64() > Some(480), "{last}");
}
