//! `tau completions` and `tau man`: what shells and manuals know of the command line, from its own description.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Arguments;
use crate::failure::Failure;
use crate::output;

/// Writes what a shell completes with.
pub(crate) fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "tau", &mut script);
    output::plain(&String::from_utf8_lossy(&script));
}

/// Writes a page for the program and one for each command.
pub(crate) fn pages(dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), dir))
        .map_err(|error| {
            Failure::Failed(format!(
                "the manual pages could not be written to {}: {error}; give another folder",
                dir.display()
            ))
        })
}
