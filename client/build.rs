//! Names the build after the commit that it is of: two builds of one release that differ are not the same program.
//!
//! Without git, or outside of its own repository (an unpacked archive), it is the plain release.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Digits of a commit's name.
const DIGITS: &str = "--short=9";
/// What the program is made of, as git's and cargo's paths from the workspace's root.
const SOURCES: [&str; 10] = [
    "Cargo.toml",
    "Cargo.lock",
    "client/Cargo.toml",
    "client/src",
    "client/build.rs",
    "client/presets",
    "communicator",
    "protocol",
    "whole_file",
    "worker",
];

fn main() {
    // Cargo says where, when it runs this: the folder may have been moved since this was compiled.
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

/// The commit, and whether the sources differ from it.
fn commit(root: &Path) -> Option<String> {
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    // An archive may have been unpacked within somebody else's repository.
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // A commit is written to the log of HEAD; a change of branch, too. Without that log, HEAD itself has to do.
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
