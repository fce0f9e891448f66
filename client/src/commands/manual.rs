//! `tau completions` and `tau man`: write shell completions and manual pages, generated from the command line's types.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Arguments;
use crate::failure::Failure;
use crate::output;

/// Writes the completion script of a shell to standard output.
pub(crate) fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "tau", &mut script);
    output::plain(&String::from_utf8_lossy(&script));
}

/// Writes manual pages for the program and each command to a folder.
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
