//! The command line as users and scripts know it, over the real binary.

use crate::harness::{Tau, idx_folder, points_csv};
use serde_json::Value;

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

fn train(tau: &Tau, data: &str, extra: &[&str]) -> crate::harness::Output {
    let mut arguments = vec!["train", "--nodes", "1", "--threads", "1", "--json", "--data", data];
    arguments.extend_from_slice(SMALL);
    arguments.extend_from_slice(extra);
    tau.run(&arguments)
}

#[test]
fn training_ends_with_a_model_that_evaluates_alike() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 600);
    let output = train(&tau, &format!("csv:{csv}"), &[]);
    assert_eq!(output.code, 0, "{}", output.stderr);
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
    let evaluated = tau.run(&["evaluate", model, "--data", &format!("csv:{csv}"), "--json"]);
    assert_eq!(evaluated.code, 0, "{}", evaluated.stderr);
    for key in ["accuracy", "loss", "digest"] {
        assert_eq!(evaluated.last()[key], finished[key], "{key}");
    }
}

#[test]
fn the_same_job_gives_the_same_model_to_the_bit() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 300);
    // Dropout draws numbers too.
    let model = "dense 16, relu, dropout 0.3, dense 2";
    let digest = |seed: &str| {
        let output = train(&tau, &format!("csv:{csv}"), &["--seed", seed, "--model", model]);
        assert_eq!(output.code, 0, "{}", output.stderr);
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
    // A layer this wide takes small steps only.
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
    // 4.9 million weights, of which a tiny τ lets nearly all change in every step.
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
fn a_run_that_diverges_fails_and_leaves_nothing() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 400);
    let flags = ["--optimiser", "sgd:100000", "--density", "1", "--epochs", "100"];
    let output = train(&tau, &format!("csv:{csv}"), &flags);
    assert_eq!(output.code, 1, "{}", output.stderr);
    let failed = output.last();
    assert_eq!(failed["event"], "failed");
    assert!(failed["error"].as_str().unwrap().contains("diverged"), "{failed}");
    assert_eq!(tau.files(), ["points.csv"]);
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
        .run(&[
            "train",
            "--nodes",
            "1",
            "job.toml",
            "--threads",
            "1",
            "--json",
            "--epochs",
            "1",
        ])
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
            );
            assert_eq!(output.code, 0, "{}", output.stderr);
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
    assert!(reached["accuracy"].as_f64().unwrap() >= 0.85, "{reached}");
    assert!(reached["epochs"].as_f64().unwrap() < 100_000.0);
    let timed = train(&tau, &data, &["--epochs", "100000", "--max-seconds", "0.3"]).last();
    assert_eq!(timed["event"], "finished");
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
    let output = running.finish();
    assert_eq!(output.code, 0, "{}", output.stderr);
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
        tau.files(),
        ["points.csv", "tau-out/model.safetensors"],
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
    let plain = tau.run(&[
        "train",
        "--data",
        &format!("csv:{csv}"),
        "--model",
        "dense 2",
        "--threads",
        "1",
    ]);
    assert_eq!((plain.code, plain.stdout.as_str()), (0, ""), "{}", plain.stderr);
    assert!(plain.stderr.contains("replicas agree"));
}

/// Runs a command that must be refused: exit code 2, one sentence with `says`, nothing written.
fn refused(tau: &Tau, arguments: &[&str], says: &str) {
    let before = tau.files();
    let output = tau.run(arguments);
    assert_eq!(output.code, 2, "{arguments:?} gave {} {}", output.stdout, output.stderr);
    let lines: Vec<&str> = output.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{}", output.stderr);
    assert!(
        lines[0].starts_with("error: ") && lines[0].contains(says),
        "{} does not say {says}",
        lines[0]
    );
    assert_eq!(tau.files(), before, "{arguments:?} wrote something");
}

#[test]
fn bad_jobs_are_refused() {
    let tau = Tau::new();
    let cases: &[(&[&str], &str)] = &[
        (&["--model", "dense 5, magic 3, dense 10"], "there is no layer 'magic'"),
        (
            &["--model", "conv 8 3x3, dense 10"],
            "layer 1 ('dense 10') gets 8x26x26",
        ),
        (&["--model", "conv 8 30x30, flatten, dense 10"], "larger than the image"),
        (&["--model", "dense 12"], "the data has 10 classes"),
        (
            &["--density", "0"],
            "--density: it must be above 0 and at most 1, not 0",
        ),
        (&["--density", "1.5"], "not 1.5"),
        (&["--tau", "0"], "--tau"),
        (&["--epochs", "0"], "--epochs"),
        (&["--minibatch", "0"], "--minibatch"),
        (&["--optimiser", "sgd:fast"], "no option 'fast'"),
        (&["--lr-schedule", "wild"], "there is no schedule 'wild'"),
        (&["--split", "half"], "half"),
        (&["--exchange", "gossip"], "there is no exchange 'gossip'"),
        (&["--data", "ftp:somewhere"], "ftp"),
        (&["--threads", "0"], "--threads"),
        (&["--nodes", "0"], "--nodes"),
        (&["--device", "abacus"], "abacus"),
        (&["missing.toml"], "missing.toml could not be read"),
        (&["--checkpoint-every", "5"], "needs nodes that stay"),
        (
            &["--model", "conv 8 3x3 pad 20000, maxpool 40000, flatten, dense 10"],
            "2^28",
        ),
        (&["--model", "dense 40000, dense 40000, dense 10"], "of memory"),
        (&["--optimiser", "sgd:0.1,nesterov"], "nesterov needs a momentum"),
    ];
    for (arguments, says) in cases {
        let mut all = vec!["train"];
        all.extend_from_slice(arguments);
        refused(&tau, &all, says);
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let tau = Tau::new();
    let output = tau.run(&[
        "train",
        "--epochs",
        "0",
        "--density",
        "7",
        "--model",
        "nothing",
        "--json",
    ]);
    assert_eq!(output.code, 2);
    for key in ["--epochs", "--density", "--model"] {
        assert!(output.stderr.contains(key), "{}", output.stderr);
    }
    assert_eq!(output.last()["event"], "failed");
    assert!(tau.files().is_empty());
}

#[test]
fn bad_job_files_are_refused() {
    let tau = Tau::new();
    std::fs::write(tau.path("job.toml"), "seed = 1\nepoch = 3").unwrap();
    refused(
        &tau,
        &["train", "job.toml"],
        "job.toml is not a valid job: line 2: unknown field `epoch`",
    );
    std::fs::write(tau.path("job.toml"), "epochs = ").unwrap();
    refused(&tau, &["train", "job.toml"], "not a valid job");
}

#[test]
fn bad_idx_files_are_refused() {
    let tau = Tau::new();
    let model = ["--model", "dense 2"];
    let refused_idx = |says: &str| {
        refused(&tau, &["train", "--data", "idx:images", model[0], model[1]], says);
    };
    refused_idx("images");
    idx_folder(&tau, "images", 6, false);
    let labels = tau.path("images/train-labels-idx1-ubyte");
    let images = tau.path("images/train-images-idx3-ubyte");
    let (good_labels, good_images) = (std::fs::read(&labels).unwrap(), std::fs::read(&images).unwrap());
    std::fs::remove_file(&labels).unwrap();
    refused_idx("train-labels-idx1-ubyte");
    std::fs::write(&labels, &good_images).unwrap();
    refused_idx("train-labels-idx1-ubyte");
    std::fs::write(&labels, &good_labels).unwrap();
    std::fs::write(&images, &good_images[..good_images.len() - 5]).unwrap();
    refused_idx("train-images-idx3-ubyte");
    std::fs::write(&images, &good_images).unwrap();
    refused(
        &tau,
        &["train", "--data", "idx:images", "--model", "dense 3"],
        "the data has 2 classes",
    );
}

#[test]
fn bad_csv_files_are_refused() {
    let tau = Tau::new();
    let refused_csv = |text: &str, spec: &str, says: &str| {
        std::fs::write(tau.path("data.csv"), text).unwrap();
        refused(&tau, &["train", "--data", spec, "--model", "dense 2"], says);
    };
    refused(&tau, &["train", "--data", "csv:nowhere.csv"], "nowhere.csv");
    refused_csv("a,b,class\n1,2,x\n3,oops,y\n", "csv:data.csv", "line 3");
    refused_csv("a,b,class\n1,2,x\n3,y\n", "csv:data.csv", "line 3");
    refused_csv("a,b,class\n1,2,x\n3,4,y\n", "csv:data.csv?label=kind", "kind");
    refused_csv("", "csv:data.csv", "data.csv");
    refused_csv("1,2,x\n3,4,x\n5,6,x\n", "csv:data.csv", "two classes");
    refused_csv("1,2,x\n3,4,y\n", "csv:data.csv?test=2", "test");
}

#[test]
fn data_outside_its_root_is_refused() {
    let tau = Tau::new();
    std::fs::create_dir(tau.path("root")).unwrap();
    points_csv(&tau, "points.csv", 50);
    let arguments = [
        "train",
        "--data-root",
        "root",
        "--data",
        "csv:../points.csv",
        "--model",
        "dense 2",
    ];
    refused(&tau, &arguments, "outside");
}

#[test]
fn an_unwritable_out_folder_is_refused() {
    let tau = Tau::new();
    std::fs::write(tau.path("file"), "in the way").unwrap();
    refused(&tau, &["train", "--out", "file/below"], "cannot be written to");
    refused(
        &tau,
        &["train", "--out", "/dev/null/out"],
        "give another folder with --out",
    );
}

#[test]
fn models_of_another_shape_are_refused() {
    let tau = Tau::new();
    let csv = points_csv(&tau, "points.csv", 100);
    let model = train(&tau, &format!("csv:{csv}"), &[]).last()["model"]
        .as_str()
        .unwrap()
        .to_owned();
    refused(&tau, &["evaluate", &model, "--data", "builtin:mnist"], "trained on");
    idx_folder(&tau, "images", 6, false);
    refused(&tau, &["evaluate", &model, "--data", "idx:images"], "trained on");
    std::fs::write(tau.path("wide.csv"), "1,2,3,a\n4,5,6,b\n").unwrap();
    refused(&tau, &["evaluate", &model, "--data", "csv:wide.csv"], "trained on");
    let images = train(&tau, "idx:images", &["--model", "dense 2", "--out", "small"]).last();
    let images = images["model"].as_str().unwrap();
    refused(
        &tau,
        &["evaluate", images, "--data", "builtin:mnist"],
        "the model only knows 0, 1",
    );
    idx_folder(&tau, "larger", 8, false);
    let says = "takes samples of 1x6x6, but idx:larger has samples of 1x8x8";
    refused(&tau, &["evaluate", images, "--data", "idx:larger"], says);
    refused(
        &tau,
        &["evaluate", "points.csv", "--data", "builtin:mnist"],
        "is not a model file",
    );
    refused(
        &tau,
        &["evaluate", "missing", "--data", "builtin:mnist"],
        "missing could not be read (No such file",
    );
    refused(&tau, &["evaluate", &model, "--data", "nonsense"], "nonsense");
}

#[test]
fn credentials_are_made_once() {
    let tau = Tau::new();
    let made = tau.run(&["credentials", "new", "cluster.pem"]);
    assert_eq!((made.code, made.stdout.as_str()), (0, ""), "{}", made.stderr);
    let before = std::fs::read(tau.path("cluster.pem")).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(tau.path("cluster.pem")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    refused(&tau, &["credentials", "new", "cluster.pem"], "exists already");
    assert_eq!(std::fs::read(tau.path("cluster.pem")).unwrap(), before);
    refused(
        &tau,
        &["credentials", "new", "nowhere/cluster.pem"],
        "could not be written",
    );
}

#[test]
fn usage_errors_have_exit_code_2() {
    let tau = Tau::new();
    assert_eq!(tau.run(&["conquer"]).code, 2);
    assert_eq!(tau.run(&["train", "--no-such-flag"]).code, 2);
    assert_eq!(tau.run(&[]).code, 2);
    assert_eq!(tau.run(&["train", "--help"]).code, 0);
    let unreadable = tau.run(&["train", "--density", "much", "--json"]);
    assert_eq!((unreadable.code, &unreadable.last()["event"]), (2, &"failed".into()));
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
        text(defaults.data),
        text(defaults.model.map(|model| format!("\"{model}\""))),
        text(defaults.epochs.map(|n| n.to_string())),
        text(defaults.minibatch.map(|n| n.to_string())),
        text(defaults.optimiser),
        text(defaults.clip),
        text(defaults.lr_schedule),
        text(defaults.density.map(|density| density.to_string())),
        text(defaults.split),
        text(defaults.balanced.map(|balanced| balanced.to_string())),
        text(defaults.exchange),
        text(defaults.seed.map(|seed| seed.to_string())),
    ] {
        assert!(help.contains(&default), "the help does not say {default}");
    }
}
