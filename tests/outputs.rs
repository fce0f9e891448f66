//! Tests of output files: results go to the path that the user gives, no other file is replaced, and a path that cannot
//! be written or read safely is refused with a message.

#![cfg(unix)]

use std::fs::{File, metadata, read, symlink_metadata};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::mpsc::channel;

use crate::command_line::train;
use crate::harness::{LIFETIME, TRAIN_POINTS, Tau, points_csv, skip, words};

/// Trains a small model and returns its path.
fn trained(tau: &Tau) -> String {
    let csv = points_csv(tau, "points.csv", 60);
    let output = train(tau, &format!("csv:{csv}"), &[]).ok();
    output.last()["model"].as_str().unwrap().to_owned()
}

#[test]
fn an_export_follows_links_and_refuses_what_it_cannot_replace() {
    let tau = Tau::new();
    let model = trained(&tau);
    let export = |to: &str| tau.run(&["export", &model, "--onnx", to]);
    assert_eq!(export("model.onnx").code, 0);
    let onnx = read(tau.path("model.onnx")).unwrap();
    std::fs::create_dir(tau.path("far")).unwrap();
    std::fs::write(tau.path("far/target"), "keep").unwrap();
    for (link, target) in [("link", "far/target"), ("dangling", "far/new")] {
        symlink(target, tau.path(link)).unwrap();
        assert_eq!(export(link).code, 0);
        assert!(tau.path(link).is_symlink());
        assert_eq!(read(tau.path(target)).unwrap(), onnx);
    }
    let _socket = UnixListener::bind(tau.path("socket")).unwrap();
    for (path, says) in [("far", "a folder"), ("socket", "a socket")] {
        let before = metadata(tau.path(path)).unwrap().file_type();
        let refused = export(path);
        refused.fails(2, says);
        assert_eq!(metadata(tau.path(path)).unwrap().file_type(), before);
    }
}

#[test]
fn an_export_is_written_through_to_pipes_and_devices() {
    let tau = Tau::new();
    let model = trained(&tau);
    tau.must(&["export", &model, "--onnx", "model.onnx"]);
    let onnx = read(tau.path("model.onnx")).unwrap();
    assert!(Command::new("mkfifo").arg(tau.path("pipe")).status().unwrap().success());
    let pipe = tau.path("pipe");
    let (sender, received) = channel();
    std::thread::spawn(move || sender.send(read(pipe).unwrap()));
    tau.must(&["export", &model, "--onnx", "pipe"]);
    // Reading a pipe that no process opens for writing would never end.
    assert_eq!(received.recv_timeout(LIFETIME).unwrap(), onnx);
    assert!(symlink_metadata(tau.path("pipe")).unwrap().file_type().is_fifo());
    // Messages about the export do not go to the same stream.
    symlink("/proc/self/fd/1", tau.path("stdout")).unwrap();
    let through = tau.run_bytes(&["export", &model, "--onnx", "stdout"]);
    assert_eq!(through, onnx);
    // Devices like /dev/null and /dev/full, but in the folder of the test.
    for (name, minor, code) in [("null", "3", 0), ("full", "7", 1)] {
        let made = Command::new("mknod")
            .arg(tau.path(name))
            .args(["c", "1", minor])
            .output();
        if !made.unwrap().status.success() || File::options().write(true).open(tau.path(name)).is_err() {
            skip("only root makes devices, and not everywhere");
            return;
        }
        assert_eq!(tau.run(&["export", &model, "--onnx", name]).code, code);
        assert!(symlink_metadata(tau.path(name)).unwrap().file_type().is_char_device());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_written_fails_the_command() {
    let tau = Tau::new();
    let model = trained(&tau);
    let json = [&TRAIN_POINTS[..], &["--json", "--out", "kept"]].concat();
    let commands: [&[&str]; 8] = [
        &["show", &model],
        &["show", &model, "--json"],
        &["evaluate", &model, "--json"],
        &["evaluate", &model, "--confusion"],
        &["completions", "bash"],
        &["version"],
        &["train", "--help"],
        &json,
    ];
    for command in commands {
        let (code, errors) = tau.run_full(command);
        assert_eq!(code, 1, "{command:?}: {errors}");
        assert_eq!(
            errors.matches("could not be written to standard output").count(),
            1,
            "{errors}"
        );
    }
    assert!(
        tau.path("kept/latest/model.safetensors").is_file(),
        "the run is not lost"
    );
}

#[test]
fn control_characters_reach_scripts_and_not_terminals() {
    let tau = Tau::new();
    let label = |row: u32| {
        if row.is_multiple_of(2) {
            "\"\x1b[31mred\x07\nsecond\""
        } else {
            "blue"
        }
    };
    let rows: Vec<String> = (0..60).map(|row| format!("{},{}", row % 2, label(row))).collect();
    std::fs::write(tau.path("odd.csv"), format!("\x1b[1mx,kind\n{}\n", rows.join("\n"))).unwrap();
    let trained = tau.must(&words("train --nodes 1 --data csv:odd.csv --model dense --epochs 1"));
    let model = "tau-out/latest/model.safetensors";
    let refused = tau.run(&["show", "\x1b[31m.safetensors"]);
    for output in [
        &trained,
        &tau.run(&["show", model]),
        &tau.run(&["evaluate", model, "--confusion"]),
        &tau.run(&["export", model, "--onnx", "model.onnx"]),
        &refused,
    ] {
        let text = format!("{}{}", output.stdout, output.stderr);
        assert!(
            !text.contains(|letter: char| letter.is_control() && letter != '\n'),
            "{text:?}"
        );
        assert!(!text.contains("\nsecond"), "{text}");
    }
    refused.says("\\u{1b}[31m.safetensors");
    let predicted = tau.run(&["predict", model, "--data", "csv:odd.csv"]);
    assert!(
        predicted.stdout.contains("\x1b[31mred\x07\nsecond"),
        "{}",
        predicted.stdout
    );
}

#[test]
fn something_else_of_the_name_latest_is_named_and_stays() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 60);
    std::fs::create_dir_all(tau.path("tau-out/latest")).unwrap();
    let trained = tau.must(&TRAIN_POINTS);
    trained.says("tau-out/latest is not a symbolic link");
    let (_, saved) = trained.stdout.split_once("model saved as ").unwrap();
    assert!(std::path::Path::new(saved.trim()).is_file(), "{saved}");
    assert!(tau.path("tau-out/latest").is_dir() && !tau.path("tau-out/latest").is_symlink());
}
