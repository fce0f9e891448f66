//! Starting Tau anywhere: a line that is pasted, a host's name, the environment; and what nodes say of themselves.

use std::time::{Duration, Instant};

use crate::harness::{Tau, points_csv};

/// How long nodes may take to find each other and to say something.
const LIMIT: Duration = Duration::from_mins(1);

/// Looks again until something holds.
fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < LIMIT, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_token_is_all_that_a_machine_needs_to_join_and_nodes_say_what_they_do() {
    let tau = Tau::new();
    let data = points_csv(&tau, "points.csv", 300);
    assert_eq!(tau.run(&["credentials", "new", "cluster.pem"]).code, 0);
    let common = ["--threads", "1"];
    let listen = [
        "seed",
        "--listen",
        "localhost:0",
        "--credentials",
        "cluster.pem",
        "--dir",
        "a",
        "--json",
    ];
    let mut seed = tau.start(&[listen.as_slice(), &common].concat());
    let listening: serde_json::Value = serde_json::from_str(&seed.read_line()).unwrap();
    let address = listening["address"].as_str().unwrap();
    let token = tau.run_with(&[("TAU_CREDENTIALS", "cluster.pem")], &["token", "--cluster", address]);
    assert!(token.stderr.contains("this machine only"), "{}", token.stderr);
    let token = token.stdout.trim();

    let place = ["--listen", "127.0.0.1:0", "--dir", "b"];
    let guest = tau.start(&[&["join", token], place.as_slice(), &common].concat());
    let nodes = || tau.run_with(&[("TAU_CLUSTER", token)], &["nodes", "--json"]);
    wait_for("a join by token", || nodes().stdout.lines().count() == 2);
    let (data, layers) = (format!("csv:{data}"), "dense 2");
    let job = ["--data", &data, "--model", layers, "--epochs", "2", "--json"];
    let run = tau.run(&[&["start", "--cluster", token], job.as_slice()].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert_eq!(run.last()["nodes"], 2);
    for news in [
        "joined the cluster",
        "a run begins",
        "the run has ended",
        "the model is saved",
    ] {
        wait_for(news, || guest.log().contains(news));
    }

    let half = &token[..token.len() / 2];
    for (arguments, says) in [
        (vec!["nodes", "--cluster", half], "not a whole token"),
        (
            vec!["nodes", "--cluster", token, "--insecure"],
            "nothing else beside it",
        ),
        (
            vec!["seed", "--listen", "no-such-host.invalid:0", "--insecure"],
            "--listen no-such-host.invalid:0",
        ),
    ] {
        let refused = tau.run(&arguments);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
}

#[test]
fn shells_and_manuals_know_every_command() {
    let tau = Tau::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = tau.run(&["completions", shell]);
        assert_eq!(script.code, 0, "{}", script.stderr);
        assert!(script.stdout.contains("predict"), "{shell}");
    }
    assert_eq!(tau.run(&["man", "pages"]).code, 0);
    for page in ["tau.1", "tau-train.1", "tau-predict.1"] {
        let text = std::fs::read_to_string(tau.path("pages").join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}
