//! Tests of the command line as users and scripts use it, with the real binary.

use std::fmt::Write as _;

use protocol::stats::{FIGURES, RUN_FIGURES};
use serde_json::Value;

use crate::harness::{Tau, idx_folder, kept_in, points_csv, words};

const SMALL: &[&str] = &[
    "--model",
    "dense 16, relu, dense 2",
    "--epochs",
    "3",
    "--minibatch",
    "16",
    "--density",
    "0.05",
];

/// Trains a small network on one node.
pub(crate) fn train(tau: &Tau, data: &str, extra: &[&str]) -> crate::harness::Output {
    let mut arguments = vec!["train", "--nodes", "1", "--threads", "1", "--json", "--data", data];
    arguments.extend_from_slice(SMALL);
    arguments.extend_from_slice(extra);
    tau.run(&arguments)
}

#[test]
fn training_ends_with_a_model_that_evaluates_alike() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 600);
    let output = train(&tau, &format!("csv:{csv}"), &[]).ok();
    let finished = output.last();
    assert_eq!(finished["event"], "finished");
    assert_eq!(finished["replicas_agree"], true);
    assert_eq!(finished["samples"], 3 * 480);
    assert_eq!(finished["epochs"], 3.0);
    assert_eq!(finished["nodes"], 1);
    assert!(finished["accuracy"].as_f64().unwrap() > 0.95, "{finished}");
    assert!(finished["compression"].as_f64().unwrap() > 1.0);
    let model = finished["model"].as_str().unwrap();
    assert!(std::path::Path::new(model).is_absolute());
    let evaluated = tau.must(&["evaluate", model, "--data", &format!("csv:{csv}"), "--json"]);
    for key in ["accuracy", "loss", "digest"] {
        assert_eq!(evaluated.last()[key], finished[key], "{key}");
    }
}

#[test]
fn the_same_job_gives_the_same_model_to_the_bit() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 300);
    // Dropout uses random numbers too.
    let model = "dense 16, relu, dropout 0.3, dense 2";
    let digest = |seed: &str| {
        let output = train(&tau, &format!("csv:{csv}"), &["--seed", seed, "--model", model]).ok();
        output.last()["digest"].clone()
    };
    let first = digest("1");
    assert_eq!(first, digest("1"));
    assert_ne!(first, digest("2"));
}

#[test]
fn several_threads_train_as_well() {
    let tau = Tau::new();
    let folder = idx_folder(&tau, "images", 6, false);
    let model = "conv 4 3x3, relu, maxpool 2, flatten, dense 40000, relu, dense 2";
    // A layer this wide needs a low learning rate.
    let flags = [
        "--threads",
        "3",
        "--model",
        model,
        "--optimiser",
        "sgd:0.001,momentum=0.9",
    ];
    let finished = train(&tau, &format!("idx:{folder}"), &flags).last();
    assert_eq!(finished["replicas_agree"], true);
    assert!(finished["accuracy"].as_f64().unwrap() > 0.9, "{finished}");
}

#[test]
fn more_changes_than_a_batch_holds_wait_in_the_residual() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 40);
    // A model of 4.9 million weights, in which a tiny τ lets nearly all weights change in every step.
    let model = "dense 2200, relu, dense 2200, relu, dense 2";
    let flags = [
        "--threads",
        "2",
        "--model",
        model,
        "--epochs",
        "1",
        "--optimiser",
        "sgd:0.01",
        "--tau",
        "0.000001",
    ];
    let arguments = [&["train", "--json", "--data", "csv:points.csv"], &flags[..]].concat();
    let output = tau.run(&arguments);
    assert_eq!(output.code, 0, "{csv}: {}", output.stderr);
    assert_eq!(output.last()["replicas_agree"], true);
}

#[test]
fn a_run_of_one_step_trains() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 20);
    let finished = train(&tau, &format!("csv:{csv}"), &["--epochs", "1"]).last();
    assert!(finished["density"].as_f64().unwrap() > 0.0, "{finished}");
}

#[test]
fn a_run_that_diverges_fails_and_leaves_only_what_happened() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 400);
    let flags = words("--optimiser sgd:100000 --density 1 --epochs 100 --back-off=false");
    let output = train(&tau, &format!("csv:{csv}"), &flags);
    assert_eq!(output.code, 1, "{}", output.stderr);
    let failed = output.last();
    assert_eq!(failed["event"], "failed");
    let says = "diverged with --optimiser sgd:100000: add --optimiser sgd:50000";
    assert!(failed["error"].as_str().unwrap().contains(says), "{failed}");
    assert_eq!(
        tau.files_by_kind(),
        [
            "points.csv",
            "tau-out/RUN/events.jsonl",
            "tau-out/RUN/job.toml",
            "tau-out/RUN/metrics.jsonl"
        ]
    );
    // The absence of a model and of figures is explained.
    let shown = tau.run(&["show", "tau-out/latest/model.safetensors"]);
    shown.fails(2, "has no model, because the run failed");
    tau.must(&["report", "tau-out"]);
    let report = std::fs::read_to_string(tau.path("tau-report/report.md")).unwrap();
    assert!(report.contains("failed: ") && report.contains("diverged"), "{report}");
    // The failure is reported once, however many nodes have seen it.
    let flags = [&flags[..], &["--nodes", "3", "--threads", "1"]].concat();
    let output = train(&tau, &format!("csv:{csv}"), &flags);
    let said = output.stderr.matches("diverged").count();
    assert_eq!((output.code, said), (1, 1), "{}", output.stderr);
}

#[test]
fn a_job_file_is_the_flags() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 300);
    let by_flags = train(&tau, &format!("csv:{csv}"), &[]).last();
    let toml = format!(
        "data = \"csv:{csv}\"\nmodel = \"dense 16, relu, dense 2\"\nepochs = 3\nminibatch = 16\ndensity = 0.05\n"
    );
    std::fs::write(tau.path("job.toml"), toml).unwrap();
    let by_file = tau
        .run(&["train", "--nodes", "1", "job.toml", "--threads", "1", "--json"])
        .last();
    assert_eq!(by_file["digest"], by_flags["digest"]);
    let overruled = tau
        .run(&words("train --nodes 1 job.toml --threads 1 --json --epochs 1"))
        .last();
    assert_eq!(overruled["epochs"], 1.0);
}

#[test]
fn idx_files_raw_and_zipped_are_one_dataset() {
    let tau = Tau::new();
    let digests: Vec<Value> = [false, true]
        .into_iter()
        .map(|zipped| {
            let folder = idx_folder(&tau, if zipped { "zipped" } else { "raw" }, 6, zipped);
            let output = train(
                &tau,
                &format!("idx:{folder}"),
                &["--model", "conv 3 3x3, relu, maxpool 2, flatten, dense 2"],
            )
            .ok();
            output.last()["digest"].clone()
        })
        .collect();
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn training_stops_where_it_is_told_to() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 2000);
    let data = format!("csv:{csv}");
    let reached = train(&tau, &data, &["--epochs", "100000", "--target-accuracy", "0.9"]).last();
    assert!(reached["accuracy"].as_f64().unwrap() >= 0.9, "{reached}");
    assert_eq!(reached["reason"], "target_reached");
    assert!(reached["epochs"].as_f64().unwrap() < 100_000.0);
    let flags = ["--epochs", "100000", "--target-loss", "0.4", "--target-accuracy", "0.5"];
    let reached = train(&tau, &data, &flags).last();
    assert_eq!(reached["reason"], "target_reached", "{reached}");
    let evaluations = reached["evaluations"].as_array().unwrap();
    // The last evaluation is that of the result, on the test rows.
    let (_, during) = evaluations.split_last().unwrap();
    let loss = during.last().unwrap()["loss"].as_f64().unwrap();
    assert!(loss <= 0.4, "{reached}");
    let timed = train(&tau, &data, &["--epochs", "100000", "--max-seconds", "0.3"]).last();
    assert_eq!(
        (&timed["event"], &timed["reason"]),
        (&"finished".into(), &"time_up".into())
    );
    assert!(timed["epochs"].as_f64().unwrap() < 100_000.0);
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_what_there_is() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 2000);
    let data = format!("csv:{csv}");
    let mut arguments = vec!["train", "--threads", "1", "--json", "--data", &data];
    arguments.extend_from_slice(SMALL);
    arguments.extend_from_slice(&["--epochs", "1000000"]);
    let mut running = tau.start(&arguments);
    running.wait_until_trains();
    running.interrupt();
    let output = running.finish().ok();
    let finished = output.last();
    assert_eq!(
        (&finished["event"], &finished["replicas_agree"]),
        (&"finished".into(), &true.into())
    );
    let evaluated = tau.run(&[
        "evaluate",
        finished["model"].as_str().unwrap(),
        "--data",
        &data,
        "--json",
    ]);
    assert_eq!(evaluated.last()["digest"], finished["digest"]);
    assert_eq!(
        tau.files_by_kind(),
        [vec!["points.csv".into()], kept_in("tau-out")].concat(),
        "something was left behind"
    );
}

#[test]
fn json_is_all_there_is_on_standard_output() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 300);
    let output = train(&tau, &format!("csv:{csv}"), &[]);
    for line in output.stdout.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        assert!(object["event"].is_string(), "{line}");
    }
    let plain = tau.must(&words(&format!("train --data csv:{csv} --model 'dense 2' --threads 1")));
    // Results go to standard output, messages to standard error.
    assert!(plain.stdout.starts_with("accuracy "), "{}", plain.stdout);
    assert!(plain.stdout.contains("replicas agree") && !plain.stderr.contains("replicas agree"));
}

#[test]
fn the_help_names_the_defaults() {
    let tau = Tau::new();
    let help = tau
        .run(&["train", "--help"])
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let defaults = protocol::job::JobDraft::from(&protocol::job::JobDraft::default().resolve().unwrap());
    let text = |value: Option<String>| format!("[default: {}]", value.unwrap());
    for default in [
        text(defaults.clip),
        text(defaults.lr_schedule),
        text(defaults.split),
        text(defaults.balanced.map(|balanced| balanced.to_string())),
        text(defaults.back_off.map(|backs_off| backs_off.to_string())),
        text(defaults.validation),
        text(defaults.seed.map(|seed| seed.to_string())),
    ] {
        assert!(help.contains(&default), "the help does not say {default}");
    }
    let data = format!("[default: {}, or module for", defaults.data.unwrap());
    assert!(help.contains(&data), "the help does not say {data}");
}

/// Returns the text of the page on all job keys.
fn job_keys() -> String {
    let mut page = String::from(
        "# Job keys\n\nEvery key of a job, as a flag of `tau train` and `tau start`; a job file has the same names with `_` for `-`. A key \
         with ↻ may change when a run is resumed. This page is written from the table in `protocol/src/job/keys.rs`, and a test \
         compares the two.\n\n| flag | value | meaning |\n|---|---|---|\n",
    );
    let command = <protocol::job::JobDraft as clap::Args>::augment_args(clap::Command::new("job"));
    for key in command.get_arguments() {
        let may_change = protocol::job::JobDraft::CHANGEABLE.contains(&key.get_id().as_str());
        let (flag, value) = (key.get_long().unwrap(), &key.get_value_names().unwrap()[0]);
        let help = key
            .get_help()
            .unwrap()
            .to_string()
            .replace('\n', "<br>")
            .replace('|', "\\|");
        let mark = if may_change { " ↻" } else { "" };
        let _ = writeln!(page, "| `--{flag}`{mark} | `{value}` | {help} |");
    }
    page + "\n---\n[README](../README.md) · [usage](usage/jobs.md) · [what open settings become](defaults.md)\n"
}

/// Returns the text of the page on all figures of records and results.
fn metrics() -> String {
    let mut page = String::from(
        "# Metrics\n\nThe figures of a node's record, which every node makes once a second: `tau stats --json`, `tau start --json` and \
         `metrics.jsonl` have them under these names, the live view in columns of these titles, and Prometheus under the names \
         at the right. Names that end with `_total` only grow while a run goes on, and begin again with the next. This page is \
         written from the table in `protocol/src/stats/figures.rs`, and a test compares the two.\n\n\
         | field | unit | meaning | column | Prometheus |\n|---|---|---|---|---|\n",
    );
    for figure in FIGURES {
        let column = figure
            .column
            .map_or_else(String::new, |column| format!("`{}`", column.title));
        let rate = if figure.is_rate { ", per second" } else { "" };
        let total = if figure.is_counter { "_total" } else { "" };
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {column}{rate} | `{}{total}` |",
            figure.name,
            figure.unit.name(),
            figure.meaning,
            figure.prometheus
        );
    }
    page += "\nFigures of a whole run, as `finished`, `result.json` and the lines of a study have them:\n\n\
             | field | unit | meaning | title in reports |\n|---|---|---|---|\n";
    for figure in RUN_FIGURES {
        let title = figure.study.unwrap_or_default();
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {title} |",
            figure.name,
            figure.unit.name(),
            figure.meaning
        );
    }
    page += "\nThe quality of the model over time is in *evaluations*: `evaluation` and `evaluations` of a node's record, lines of \
             `metrics.jsonl` with `\"event\": \"evaluation\"`, and `evaluations` of a result. Their fields, which `finished` and \
             `result.json` have for the saved weights, too:\n\n\
             - `samples`, `seconds`: samples that all nodes had trained, and seconds since the first step, when the weights were taken\n\
             - `accuracy`: share of correct predictions; R² for predicted numbers; null for a model without an accuracy\n\
             - `loss`: mean loss per sample; null if it is not finite\n\
             - `mae`: mean absolute error of predicted numbers; null for classes\n\
             - `named`: numbers that the user's code has measured, by name, such as `{\"perplexity\": 7.1}`: at most 16, with names of at \
             most 64 bytes; null where a number is not finite; left out if there are none\n";
    page + "\n---\n[README](../README.md) · [usage](usage/clusters.md#metrics) · [architecture](architecture.md)\n"
}

/// Checks that a page of the documentation matches the table it is written from, or writes the page if
/// `TAU_DOCS=write`.
fn written_from_a_table(name: &str, page: &str) {
    let path = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("TAU_DOCS").is_some_and(|word| word == "write") {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/{name} is of another table: write it again with TAU_DOCS=write"
    );
}

#[test]
fn the_docs_have_all_job_keys() {
    written_from_a_table("job-keys.md", &job_keys());
}

#[test]
fn the_docs_have_all_metrics() {
    written_from_a_table("metrics.md", &metrics());
}

#[test]
fn the_release_is_told_by_a_word_as_by_a_flag() {
    let tau = Tau::new();
    let (word, flag) = (tau.run(&["version"]), tau.run(&["--version"]));
    assert!(word.code == 0 && word.stdout.starts_with("tau "), "{}", word.stdout);
    assert_eq!(word.stdout, flag.stdout);
}
