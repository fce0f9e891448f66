//! The Python interpreter that runs the user's models: found and checked before anything is started.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::cluster;
use crate::failure::Failure;
use crate::version::version;

/// Environment variable that names the interpreter of `tau train`.
const VARIABLE: &str = "TAU_PYTHON";

/// Finds an interpreter that can run models: the given one, or the first that there is of the one that `TAU_PYTHON`
/// names, the one beside this program (as a wheel installs it) and `python3`. Fails if Tau's wheel of this release is
/// not installed there.
pub(crate) fn find(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let python = match given.map(Path::to_owned).or(named) {
        Some(python) => python,
        None => beside_program().unwrap_or_else(|| "python3".into()),
    };
    let said = Command::new(&python)
        .args(["-I", "-m", "tau.worker", "--version"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            Failure::input(format!(
                "{} cannot be started ({error}): name a Python interpreter with --python",
                python.display()
            ))
        })?;
    let found = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    if !said.status.success() {
        let errors = String::from_utf8_lossy(&said.stderr);
        let why = errors.lines().last().unwrap_or("it says nothing");
        return Err(Failure::input(format!(
            "{} cannot import tau ({why}): install Tau's wheel there with pip, or name another interpreter with \
             --python",
            python.display()
        )));
    }
    if found != version() {
        return Err(Failure::input(format!(
            "{} has the wheel of Tau {found}, but this program is {}: install both from one release",
            python.display(),
            version()
        )));
    }
    Ok(python)
}

fn beside_program() -> Option<PathBuf> {
    let program = cluster::program().ok()?;
    let python = program.parent()?.join("python");
    python.is_file().then_some(python)
}
