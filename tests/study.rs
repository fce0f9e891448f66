//! Tests of studies over real processes: every combination of settings is run once, despite interruptions, and
//! reported.

use std::path::Path;

use serde_json::Value;

use crate::harness::cluster::kill;
use crate::harness::{Tau, points_csv};

const SMALL: &[&str] = &[
    "--data",
    "csv:points.csv?label=side",
    "--model",
    "dense 8, relu, dense 2",
    "--epochs",
    "2",
    "--threads",
    "1",
];
const STUDY: &[&str] = &[
    "study",
    "--exchanges",
    "strom,ring",
    "--nodes",
    "1,2",
    "--out",
    "study",
    "--json",
];

fn rows(tau: &Tau) -> Vec<Value> {
    let text = std::fs::read_to_string(tau.path("study/runs.jsonl")).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the plan of each run, without its measurements.
fn kinds(rows: &[Value]) -> Vec<String> {
    let mut all: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {}", row["nodes"], row["job"]))
        .collect();
    all.sort();
    all
}

fn names(folder: &Path) -> Vec<String> {
    let mut all: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    all.sort();
    all
}

#[test]
fn a_study_that_is_killed_goes_on_and_reports_the_same_runs() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 300);
    let mut study = tau.start(&[STUDY, SMALL].concat());
    // Killed in the middle: some runs are reported, and others are not.
    study.read_line();
    kill("-KILL", study.pid());
    assert_ne!(study.finish().code, 0);
    let kept = rows(&tau);
    let output = tau.must(&[STUDY, SMALL].concat());
    assert_eq!(output.last()["event"], "report", "{}", output.last());
    let all = rows(&tau);
    assert_eq!(all[..kept.len()], kept[..], "what was kept is not run again");
    assert_eq!(all.len(), 4);
    let mut different = kinds(&all);
    different.dedup();
    assert_eq!(different.len(), 4, "{different:?}");
    for row in &all {
        let result = &row["result"];
        assert_eq!(result["replicas_agree"], true, "{row}");
        // At the end of an epoch two workers may train the same sample.
        let trained = result["samples"].as_u64().unwrap() - result["repeated_samples"].as_u64().unwrap();
        assert_eq!(trained, 480, "{row}");
        assert!(
            result["cpu_seconds"].is_number() && result["wire_sent"].is_number(),
            "{row}"
        );
        let last = result["evaluations"].as_array().unwrap().last().unwrap();
        assert_eq!(last["accuracy"], result["accuracy"], "{row}");
    }
    let files = names(&tau.path("study"));
    assert_eq!(
        files,
        ["report.html", "report.md", "runs.csv", "runs.jsonl", "study.toml"]
    );
    let text = std::fs::read_to_string(tau.path("study/report.md")).unwrap();
    for series in ["| ring | 1 |", "| ring | 2 |", "| strom | 1 |", "| strom | 2 |"] {
        assert!(text.contains(series), "{text}");
    }
    let page = std::fs::read(tau.path("study/report.html")).unwrap();
    // No run is left to do, so the report stays the same.
    tau.must(&[STUDY, SMALL].concat());
    assert_eq!(rows(&tau), all);
    assert_eq!(std::fs::read(tau.path("study/report.html")).unwrap(), page);
    // A separate report of the folder is the same too.
    tau.must(&["report", "study", "--out", "again"]);
    assert_eq!(std::fs::read(tau.path("again/report.html")).unwrap(), page);
}

#[test]
fn ctrl_c_ends_a_study_which_says_how_it_goes_on() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 300);
    let mut study = tau.start(&[STUDY, SMALL, &["--seeds", "1,2,3,4,5,6,7,8"]].concat());
    study.read_line();
    study.interrupt();
    let output = study.finish();
    output.fails(1, "run the same command again");
    let kept = rows(&tau).len();
    assert!((1..32).contains(&kept), "{kept}");
    let files = names(&tau.path("study"));
    assert_eq!(
        files,
        ["report.html", "report.md", "runs.csv", "runs.jsonl", "study.toml"]
    );
    let text = std::fs::read_to_string(tau.path("study/report.md")).unwrap();
    assert!(text.contains("planned runs have not been made yet"), "{text}");
}

#[test]
fn bad_studies_are_refused_in_a_sentence_and_change_nothing() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 300);
    std::fs::write(tau.path("broken.toml"), "title = \"t\"\n[[experiment]]\nnodes = 3\n").unwrap();
    for (arguments, said) in [
        (
            &["study", "--exchanges", "strom,gossip"][..],
            "there is no exchange 'gossip'",
        ),
        (&["study", "--exchanges", " "], "--exchanges is an empty list"),
        (&["study", "--nodes", "0"], "nodes must be"),
        (&["study", "--nodes", "65"], "--nodes must be from 1 to 64"),
        (
            &["study", "--preset", "magic"],
            "there is no preset 'magic'; the presets are: speed-up",
        ),
        (&["study", "broken.toml"], "broken.toml is not a valid study: line"),
        (&["study", "missing.toml"], "could not be read"),
        (&["study", "--data", "csv:nothing.csv?label=x"], "nothing.csv"),
        (&["report", "."], "is not the folder of a run or a study"),
    ] {
        let output = tau.run(arguments);
        assert_eq!(output.code, 2, "{arguments:?}: {}", output.stderr);
        assert!(output.stderr.contains(said), "{arguments:?}: {}", output.stderr);
        assert!(!tau.path("tau-study").exists(), "{arguments:?}");
    }
    std::fs::create_dir(tau.path("study")).unwrap();
    std::fs::write(tau.path("study/study.toml"), "title = \"other\"\nexperiment = []\n").unwrap();
    let output = tau.run(&[STUDY, SMALL].concat());
    output.fails(2, "holds another study");
    assert_eq!(names(&tau.path("study")), ["study.toml"]);
}

#[test]
fn a_runs_folder_says_what_it_came_to_and_can_be_reported() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 300);
    for (exchange, out) in [("strom", "one"), ("ring", "two")] {
        let run = [
            "train",
            "--nodes",
            "2",
            "--exchange",
            exchange,
            "--out",
            out,
            "--json",
            "--evaluations",
            "4",
        ];
        let output = tau.must(&[&run, SMALL].concat());
        let text = std::fs::read_to_string(tau.path(out).join("latest/result.json")).unwrap();
        let kept: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(kept, output.last(), "the last line");
        let usage = kept["usage"].as_array().unwrap();
        assert_eq!(usage.len(), 2, "{kept}");
        for node in usage {
            let processes = node["processes"].as_array().unwrap();
            let names: Vec<&str> = processes.iter().map(|one| one["process"].as_str().unwrap()).collect();
            assert_eq!(names, ["node", "worker 1"], "{node}");
            assert!(
                processes
                    .iter()
                    .all(|one| one["memory_peak_bytes"].as_u64().unwrap() > 1 << 20),
                "{node}"
            );
            assert!(node["wire_out"].as_u64().unwrap() > 0, "{node}");
        }
    }
    let output = tau.must(&["report", "one", "two", "--json"]);
    assert_eq!(output.last()["runs"], 2);
    let text = std::fs::read_to_string(tau.path("tau-report/report.md")).unwrap();
    assert!(
        text.contains("| ring | 2 | 1 |") && text.contains("| strom | 2 | 1 |"),
        "{text}"
    );
}
