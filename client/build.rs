//! Build script: sets `TAU_VERSION` to the release and the git commit of the sources, because builds of one release
//! from different commits are different programs.
//!
//! Without git, or outside Tau's own repository (as in an unpacked archive), the version is the release alone.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Argument of `git rev-parse` for a commit's abbreviated name of nine digits.
const DIGITS: &str = "--short=9";
/// Files and folders that the program is built from, as paths relative to the workspace's root. Uncommitted changes in
/// them give the version the ending `-dirty`.
const SOURCES: [&str; 11] = [
    "Cargo.toml",
    "Cargo.lock",
    "client/Cargo.toml",
    "client/src",
    "client/build.rs",
    "client/presets",
    "communicator",
    "protocol",
    "python",
    "whole_file",
    "worker",
];

fn main() {
    // The environment is read when the script runs, not when it is compiled: the folder may have been moved since.
    let said = |name: &str| std::env::var(name).unwrap_or_default();
    let release = said("CARGO_PKG_VERSION");
    let root = Path::new(&said("CARGO_MANIFEST_DIR")).join("..");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let version = match commit(&root) {
        Some(commit) => format!("{release}+{commit}"),
        None => release,
    };
    println!("cargo::rustc-env=TAU_VERSION={version}");
}

/// Returns the abbreviated name of the commit that the program is built from, with `-dirty` if the sources differ from
/// it, or `None` outside Tau's own repository.
fn commit(root: &Path) -> Option<String> {
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    // The archive may lie inside another project's repository.
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // Git appends commits and changes of branch to the log of HEAD. Where that log is missing, HEAD itself is watched.
    for file in ["logs/HEAD", "HEAD"] {
        let path = root.join(git(root, &["rev-parse", "--git-path", file])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let commit = git(root, &["rev-parse", DIGITS, "HEAD"])?;
    let mut status = vec!["--no-optional-locks", "status", "--porcelain", "--"];
    status.extend(SOURCES);
    let dirty = git(root, &status)?;
    Some(if dirty.is_empty() {
        commit
    } else {
        format!("{commit}-dirty")
    })
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}
