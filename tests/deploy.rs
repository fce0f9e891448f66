//! Tests of the files under `deploy/` with the tools that read them, where these are installed.

use std::process::{Command, Output};

use crate::harness::{CANNOT, Tau, skip};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// Runs a script, and skips the test if the script's exit code says that this machine lacks something.
fn script(name: &str, arguments: &[&str]) {
    let output = Command::new(format!("{ROOT}/{name}")).args(arguments).output().unwrap();
    if output.status.code() == Some(CANNOT) {
        skip(said(&output).lines().last().unwrap_or_default());
        return;
    }
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn systemd_takes_the_unit() {
    let Ok(there) = Command::new("systemd-analyze").arg("--version").output() else {
        return skip("it needs systemd-analyze");
    };
    assert!(there.status.success());
    let tau = Tau::new();
    let unit = std::fs::read_to_string(format!("{ROOT}/deploy/tau-node.service")).unwrap();
    // The unit's path to the program is replaced by that of the built one, since nothing is installed.
    let built = unit.replace("/usr/local/bin/tau", env!("CARGO_BIN_EXE_tau"));
    assert_ne!(built, unit);
    let verify = |text: &str| {
        let file = tau.path("tau-node.service");
        std::fs::write(&file, text).unwrap();
        Command::new("systemd-analyze")
            .arg("verify")
            .arg(file)
            .output()
            .unwrap()
    };
    let verified = verify(&built);
    let says = said(&verified);
    assert!(verified.status.success() && says.trim().is_empty(), "{says}");
    let broken = verify(&built.replace("Restart=on-failure", "Restart=perhaps"));
    assert!(said(&broken).contains("perhaps"), "{}", said(&broken));
}

#[test]
fn the_units_command_is_one_that_tau_takes() {
    let unit = std::fs::read_to_string(format!("{ROOT}/deploy/tau-node.service")).unwrap();
    let command = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/tau "))
        .unwrap();
    let words = command
        .replace("${TAU_SEEDS}", "nowhere.invalid:1")
        .replace("%l", "host");
    let words: Vec<&str> = words.split(' ').chain(["--data-root", "/", "--insecure"]).collect();
    let refused = Tau::new().run(&words);
    assert!(
        refused.code == 2
            && refused
                .stderr
                .contains("the host name 'nowhere.invalid' cannot be resolved"),
        "{}",
        refused.stderr
    );
}

#[test]
fn kubernetes_and_compose_files_are_well_formed() {
    script("scripts/check-deploy", &[]);
}

#[test]
fn a_slurm_job_trains() {
    script("deploy/try-slurm", &[env!("CARGO_BIN_EXE_tau")]);
}
