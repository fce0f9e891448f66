//! Tests of refusals: invalid commands and data are refused with exit code 2 and one sentence, before any file is
//! written.

use crate::command_line::train;
use crate::harness::{Tau, idx_folder, points_csv, words};

/// Runs a command that must be refused: exit code 2, one sentence that contains `says`, no new file.
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

/// Too many nodes on one machine would spend all their time on beats and never begin to train.
#[cfg(target_os = "linux")]
#[test]
fn more_nodes_than_the_cores_can_serve_are_refused() {
    let tau = Tau::new();
    let output = tau.run_on_one_core(&["train", "--nodes", "9"]);
    assert_eq!(output.code, 2, "{}", output.stderr);
    assert_eq!(
        output.stderr,
        "error: 9 nodes are too many for the 1 core of this machine: give --nodes 8 at most\n"
    );
    assert_eq!(tau.files(), [""; 0]);
    refused(
        &tau,
        &["train", "--nodes", "65"],
        "--nodes must be from 1 to 64, not 65",
    );
}

#[test]
fn bad_jobs_are_refused() {
    let tau = Tau::new();
    let cases: &[(&[&str], &str)] = &[
        (&["--model", "dense 5, magic 3, dense 10"], "there is no layer 'magic'"),
        (
            &["--model", "conv 8 3x3, groupnorm 3, dense"],
            "layer 1 ('groupnorm 3') cannot take its input of shape 8x26x26",
        ),
        (
            &["--model", "residual [ conv 8 3x3, conv 8 3x3 ], dense"],
            "cannot be added",
        ),
        (&["--model", "residual [ relu, dense"], "a '[' is not closed"),
        (&["--loss", "mse"], "--loss mse is for numbers"),
        (&["--class-weights", "1,2"], "has 2 weights, but"),
        (&["--model", "conv 8 30x30, flatten, dense 10"], "larger than the image"),
        (&["--model", "dense 12"], "the data has 10 classes"),
        (
            &["--density", "0"],
            "--density: the density must be above 0 and at most 1, not 0",
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
        (&["--checkpoint-every", "5"], "needs nodes that keep running"),
        (
            &["--model", "conv 8 3x3 pad 20000, maxpool 40000, flatten, dense 10"],
            "2^28",
        ),
        // No machine has enough memory for eight such models.
        (
            &["--nodes", "8", "--model", "dense 45000, dense 45000, dense 10"],
            "of memory",
        ),
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
    let output = tau.run(&words("train --epochs 0 --density 7 --model nothing --json"));
    assert_eq!(output.code, 2);
    for key in ["--epochs", "--density", "--model"] {
        output.says(key);
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
        "the model only knows the classes 0, 1",
    );
    idx_folder(&tau, "larger", 8, false);
    let says = "takes samples of shape 1x6x6, but idx:larger has samples of shape 1x8x8";
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

#[cfg(unix)]
#[test]
fn credentials_are_one_pair_in_a_regular_file() {
    let tau = Tau::new();
    let [a, b] = ["a.pem", "b.pem"].map(|name| {
        tau.must(&["credentials", "new", name]);
        std::fs::read_to_string(tau.path(name)).unwrap()
    });
    let (certificate, _) = a.split_at(a.find("-----BEGIN PRIVATE").unwrap());
    let (_, key) = b.split_at(b.find("-----BEGIN PRIVATE").unwrap());
    let private = |name: &str, text: String| {
        std::fs::copy(tau.path("a.pem"), tau.path(name)).unwrap();
        std::fs::write(tau.path(name), text).unwrap();
    };
    private("both.pem", format!("{a}{b}"));
    private("mixed.pem", format!("{certificate}{key}"));
    let made = std::process::Command::new("mkfifo")
        .arg("-m600")
        .arg(tau.path("pipe.pem"))
        .status();
    assert!(made.unwrap().success());
    for (file, says) in [
        ("both.pem", "more than one key pair"),
        ("mixed.pem", "do not belong together"),
        ("pipe.pem", "is a pipe: give a regular file"),
        ("/dev/zero", "is a device"),
    ] {
        refused(&tau, &["seed", "--credentials", file], says);
        refused(
            &tau,
            &["nodes", "--cluster", "127.0.0.1:1", "--credentials", file],
            says,
        );
    }
}

#[test]
fn usage_errors_have_exit_code_2() {
    let tau = Tau::new();
    assert_eq!(tau.run(&["conquer"]).code, 2);
    assert_eq!(tau.run(&["train", "--no-such-flag"]).code, 2);
    assert_eq!(tau.run(&[]).code, 2);
    tau.must(&["train", "--help"]);
    let unreadable = tau.run(&["train", "--density", "much", "--json"]);
    assert_eq!((unreadable.code, &unreadable.last()["event"]), (2, &"failed".into()));
}
