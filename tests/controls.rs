//! Tests of the settings for learning and for the end of a run, and of the warnings and results that a run reports.

use std::fmt::Write as _;

use serde_json::Value;

use crate::command_line::train;
use crate::harness::cluster::{Cluster, job};
use crate::harness::{Tau, points_csv};

/// Writes a table of points whose labels do not depend on them; about three in four rows are of one class.
fn noise_csv(tau: &Tau, name: &str, rows: u32) {
    let mut text = String::from("x,y,label\n");
    for row in 0..rows {
        let hash = |salt: u32| row.wrapping_add(salt).wrapping_mul(2_654_435_761) >> 16;
        let label = if hash(7) % 4 == 0 { "rare" } else { "usual" };
        let _ = writeln!(text, "{},{},{label}", hash(1) % 100, hash(2) % 100);
    }
    std::fs::write(tau.path(name), text).unwrap();
}

#[test]
fn a_run_that_learned_nothing_says_so() {
    let tau = Tau::new();
    noise_csv(&tau, "noise.csv", 800);
    let output = train(&tau, "csv:noise.csv", &["--minibatch", "5000"]).ok();
    let finished = output.last();
    let (base, accuracy) = (&finished["base_rate"], &finished["accuracy"]);
    assert!((0.6..0.9).contains(&base.as_f64().unwrap()), "{base}");
    let warning = finished["warnings"][0].as_str().unwrap();
    assert!(
        warning.contains("better than always guessing the most frequent class"),
        "{accuracy}: {warning}"
    );
    output.says(warning);
    output.says("a minibatch of 5000 is larger than the training data");
    let model = finished["model"].as_str().unwrap();
    let evaluated = tau.run(&["evaluate", model, "--json"]);
    assert_eq!(&evaluated.last()["base_rate"], base);
    evaluated.says(warning);
    let text = tau.run(&["evaluate", model]).stdout;
    let rate = format!(
        "(always guessing the most frequent class: {:.2} %)",
        100.0 * base.as_f64().unwrap()
    );
    assert!(text.contains(&rate) && text.contains("\nbalanced accuracy "), "{text}");
}

#[test]
fn a_run_that_learned_something_is_compared_with_guessing_and_not_warned_of() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 600);
    let data = format!("csv:{csv}");
    let finished = train(&tau, &data, &[]).last();
    assert_eq!(finished["warnings"], serde_json::json!([]), "{finished}");
    assert!(finished["base_rate"].as_f64().unwrap() < 0.7, "{finished}");
    // A warning about more threads than cores is printed once.
    let crowded = train(&tau, &data, &["--threads", "1000"]).ok();
    assert_eq!(
        crowded.stderr.matches("slow each other down").count(),
        1,
        "{}",
        crowded.stderr
    );
}

#[test]
fn a_run_ends_when_it_gets_no_better() {
    const PATIENCE: usize = 3;
    let tau = Tau::new();
    noise_csv(&tau, "noise.csv", 8000);
    let patient = ["--epochs", "100000", "--patience", &PATIENCE.to_string()];
    let output = train(&tau, "csv:noise.csv", &patient).ok();
    let finished = output.last();
    assert_eq!(finished["reason"], "patience_over", "{finished}");
    let losses = losses(&finished);
    // The last loss is of the saved weights, which the patience does not count: it may be the lowest.
    let waited_for = &losses[..losses.len() - 1];
    let is_over = |last: &usize| lowest(&waited_for[..=*last]).0 + PATIENCE == *last;
    let ended_by = (0..waited_for.len()).find(is_over);
    // An evaluation that was under way when the run was told to end may follow.
    let following = ended_by.map(|last| waited_for.len() - 1 - last);
    assert!(following.is_some_and(|following| following <= 1), "{losses:?}");
    let text = tau.run(&[
        "train",
        "--nodes",
        "2",
        "--data",
        "csv:noise.csv",
        "--model",
        "dense 32, relu, dense 2",
        "--epochs",
        "100000",
        "--patience",
        "1",
    ]);
    assert!(
        text.stdout
            .contains("stopped early: no lower validation loss in 1 evaluation\n"),
        "{}{}",
        text.stdout,
        text.stderr
    );
}

fn losses(finished: &Value) -> Vec<f64> {
    let evaluations = finished["evaluations"].as_array().unwrap();
    evaluations.iter().map(|one| one["loss"].as_f64().unwrap()).collect()
}

fn lowest(losses: &[f64]) -> (usize, f64) {
    let all = losses.iter().copied().enumerate();
    all.min_by(|(_, one), (_, other)| one.total_cmp(other)).unwrap()
}

#[test]
fn the_best_weights_are_kept_by_all_nodes_however_the_run_ends() {
    let tau = Tau::new();
    noise_csv(&tau, "noise.csv", 1000);
    let job = [
        "train",
        "--json",
        "--data",
        "csv:noise.csv",
        "--model",
        "dense 256, relu, dense 128, relu, dense 2",
        "--minibatch",
        "16",
        "--optimiser",
        "adam:0.01",
        "--keep",
        "best",
        "--validation",
        "test",
    ];
    let train = |nodes: &str, ends: [&str; 2]| {
        let epochs = ["--epochs", "100000"];
        let arguments = [&job[..], &epochs, &["--nodes", nodes], &ends].concat();
        let output = tau.must(&arguments);
        output.last()
    };
    // More than four evaluations; a slow machine is given more time for them.
    let is_measured = |finished: &Value| losses(finished).len() > 4;
    let mut in_time = ["3", "12", "48"]
        .into_iter()
        .map(|seconds| train("2", ["--max-seconds", seconds]));
    for (nodes, finished, reason) in [
        ("1", train("1", ["--epochs", "60"]), "trained"),
        ("3", train("3", ["--epochs", "60"]), "trained"),
        ("2", in_time.find(is_measured).unwrap(), "time_up"),
        ("2", train("2", ["--patience", "6"]), "patience_over"),
    ] {
        assert_eq!(finished["reason"], reason, "{finished}");
        assert_eq!(finished["replicas_agree"], true, "{finished}");
        let all = losses(&finished);
        let (saved, on_the_way) = all.split_last().unwrap();
        let (best, loss) = lowest(on_the_way);
        assert!(
            (saved - loss).abs() < 1e-5,
            "{nodes} {reason}: {saved} of {on_the_way:?}"
        );
        assert!(on_the_way.len() > 3, "{on_the_way:?}");
        // The evaluation with the lowest loss may be of the last weights or of earlier ones.
        let kept = finished["kept"]["loss"].as_f64();
        let came_back = best + 1 < on_the_way.len();
        assert!(kept.is_some() || !came_back, "{finished}");
        assert!(
            kept.is_none_or(|kept| (kept - loss).abs() < 1e-5),
            "{kept:?}, {finished}"
        );
        let model = finished["model"].as_str().unwrap();
        let evaluated = tau.run(&["evaluate", model, "--json"]).last();
        assert!((evaluated["loss"].as_f64().unwrap() - loss).abs() < 1e-5, "{evaluated}");
        assert_eq!(evaluated["digest"], finished["digest"]);
    }
}

/// Trains a small network on points and returns the run's result.
fn trained_points(tau: &Tau, extra: &[&str]) -> Value {
    let csv = points_csv(tau, "points.csv", 600);
    let output = train(tau, &format!("csv:{csv}"), extra).ok();
    output.last()
}

#[test]
fn a_run_begins_with_a_models_weights() {
    let (tau, elsewhere) = (Tau::new(), Tau::new());
    let first = trained_points(&elsewhere, &["--epochs", "10"]);
    let model = first["model"].as_str().unwrap();
    // At a learning rate near zero the weights at the end equal those at the start.
    let still = ["--epochs", "1", "--optimiser", "sgd:1e-9", "--from", model];
    for nodes in ["1", "3"] {
        let again = trained_points(&tau, &[&still[..], &["--nodes", nodes]].concat());
        assert_eq!(again["digest"], first["digest"], "{again}");
        assert_eq!(again["replicas_agree"], true);
    }
    let csv = format!("csv:{}", points_csv(&tau, "points.csv", 600));
    let wider = train(
        &tau,
        &csv,
        &["--model", "dense 16, relu, dense 5, relu, dense 2", "--from", model],
    )
    .ok();
    let said = "except 2.bias, 2.weight, 4.bias, 4.weight, which start from random values";
    wider.says(said);
    let other = train(
        &tau,
        &csv,
        &["--model", "dense 7, relu, dense 3, relu, dense 2", "--from", model],
    );
    assert_eq!(other.code, 2, "{}", other.stderr);
    assert!(
        other.stderr.contains("no tensor in") && other.stderr.contains("0.weight of 7x2"),
        "{}",
        other.stderr
    );
    let none = train(&tau, &csv, &["--from", "points.csv"]);
    none.fails(2, "is not a safetensors file");
}

#[test]
fn nodes_begin_with_the_model_that_lies_on_all_of_them() {
    let cluster = Cluster::of(2);
    let first = trained_points(&cluster.tau, &[]);
    std::fs::copy(first["model"].as_str().unwrap(), cluster.tau.path("old.safetensors")).unwrap();
    let still = ["--optimiser", "sgd:1e-9", "--from", "old.safetensors"];
    let started = cluster.must("start", &job("2", &still));
    let last = started.last();
    assert_eq!(
        (&last["digest"], &last["nodes"]),
        (&first["digest"], &2.into()),
        "{last}"
    );
    let missing = cluster.ask("start", &job("2", &["--from", "none.safetensors"]));
    missing.fails(1, "none.safetensors could not be read");
}

#[test]
fn a_finished_run_goes_on_with_more_epochs() {
    let cluster = Cluster::of(2);
    let first = cluster.ask("start", &job("2", &[])).last();
    let trained = |run: &Value| run["samples"].as_u64().unwrap() - run["repeated_samples"].as_u64().unwrap();
    assert_eq!(trained(&first), 2 * 480, "{first}");
    let run = first["run"].as_str().unwrap();
    let kept = |cluster: &Cluster, run: &str| {
        let nodes = cluster
            .nodes
            .iter()
            .map(|node| cluster.tau.path(node.dir.join(run).to_str().unwrap()));
        nodes
            .filter(|folder| {
                let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
                files
                    .map(|file| file.path())
                    .any(|file| file.extension().is_some_and(|ending| ending == "checkpoint"))
            })
            .count()
    };
    Cluster::wait_until("what the run has come to is not kept", || kept(&cluster, run) == 2);
    let output = cluster.must("start", &["--resume", run, "--epochs", "5", "--keep", "best"]);
    let longer = output.last();
    assert_eq!(trained(&longer), 5 * 480, "{longer}");
    assert_eq!(longer["replicas_agree"], true);
    let run = longer["run"].as_str().unwrap();
    Cluster::wait_until("what the longer run has come to is not kept", || {
        kept(&cluster, run) == 2
    });
    // A run can also be resumed from the folder that the client has kept.
    let latest = cluster.must("start", &["--resume", "tau-out/latest", "--epochs", "6"]);
    assert_eq!(trained(&latest.last()), 6 * 480, "{}", latest.stdout);
}
