//! Tests that run each command of docs/tutorial.md, and the example script of a cluster.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::cluster::Cluster;
use crate::harness::{Output, Running, Tau, words};

/// A block of shell commands in a Markdown text.
struct Block {
    is_background: bool,
    commands: String,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the blocks of `sh` in a Markdown text. A block for a terminal of its own is marked `sh background`.
fn blocks(text: &str) -> Vec<Block> {
    let fenced = text.split("\n```").skip(1).step_by(2);
    fenced
        .filter_map(|block| {
            let (kind, commands) = block.split_once('\n')?;
            kind.starts_with("sh").then(|| Block {
                is_background: kind == "sh background",
                commands: commands.into(),
            })
        })
        .collect()
}

/// Makes a folder with a copy of the repository's examples, in which the tutorial's commands run.
fn with_examples() -> Tau {
    let tau = Tau::new();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(repository().join("examples"))
        .arg(tau.path(""))
        .status();
    assert!(copied.unwrap().success());
    tau
}

/// Returns the first of three successive ports that are free now.
fn free_ports() -> u16 {
    let is_free = |port: &u16| (*port..*port + 3).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    (20_000..32_000).step_by(3).find(is_free).unwrap()
}

/// Runs commands in a shell that stops at the first one that fails.
fn shell(tau: &Tau, commands: &str) -> Output {
    let binaries = Path::new(env!("CARGO_BIN_EXE_tau")).parent().unwrap();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-euc", commands]).current_dir(tau.path(""));
    command.env("PATH", path).env("XDG_CONFIG_HOME", tau.path(""));
    Tau::spawn(&mut command).finish()
}

#[test]
fn every_command_of_the_tutorial_runs() {
    let tau = with_examples();
    let text = std::fs::read_to_string(repository().join("docs/tutorial.md")).unwrap();
    let port = free_ports();
    let text = text
        .replace(":7700", &format!(":{port}"))
        .replace(":7701", &format!(":{}", port + 1));
    let mut exports = String::new();
    let mut nodes: Vec<Running> = Vec::new();
    let blocks = blocks(&text);
    assert!(blocks.len() > 5, "the tutorial has {} blocks of commands", blocks.len());
    for block in blocks {
        if block.is_background {
            let command = block.commands.trim().strip_prefix("tau ").expect("a command of tau");
            let node = tau.start_with(&[("TAU_CREDENTIALS", "cluster.pem")], &words(command));
            Cluster::wait_until("the node does not listen", || node.log().contains("listens on"));
            nodes.push(node);
        } else {
            let output = shell(&tau, &format!("{exports}{}", block.commands));
            assert_eq!(output.code, 0, "{}\n{}", block.commands, output.stderr);
            let lines = block.commands.lines();
            exports.extend(
                lines
                    .filter(|line| line.starts_with("export "))
                    .map(|line| format!("{line}\n")),
            );
        }
    }
    assert_eq!(nodes.len(), 2);
    let report = std::fs::read_to_string(tau.path("tau-study/report.html")).unwrap();
    assert!(report.contains("ring"), "the study's report names its strategies");
}

#[test]
fn the_example_script_of_a_cluster_leaves_a_model_and_nothing_else() {
    let tau = with_examples();
    let output = shell(&tau, &format!("examples/cluster.sh {}", free_ports())).ok();
    assert!(output.stdout.contains("3 nodes"), "{}", output.stdout);
    let files = tau.files();
    let made = files.iter().filter(|file| !file.starts_with("examples/"));
    assert!(
        made.clone().any(|file| file.ends_with("model.safetensors")),
        "{files:?}"
    );
    assert!(made.clone().all(|file| file.starts_with("tau-out/")), "{files:?}");
}
