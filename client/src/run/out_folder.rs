//! The folder that holds all runs: proven writable before training, created only when there is a run.

use std::path::{Path, PathBuf};

use protocol::ids::RunId;

use super::folder::RunFolder;
use crate::failure::Failure;

/// Folder for the folders of runs, which can be written to, though it may not exist yet.
#[derive(Clone, Debug)]
pub(crate) struct OutFolder {
    path: PathBuf,
}

impl OutFolder {
    /// Checks that files can be written to the folder, and leaves no trace of the check.
    pub(crate) fn check(path: &Path) -> Result<Self, Failure> {
        let refuse = |why: String| {
            let path = path.display();
            Failure::input(format!(
                "{path} cannot be written to: {why}; give another folder with --out"
            ))
        };
        let path = std::path::absolute(path).map_err(|error| refuse(error.to_string()))?;
        // A folder that does not exist can be created if its nearest existing ancestor is writable.
        let existing = path.ancestors().find(|folder| folder.exists()).unwrap_or(&path);
        tempfile::tempfile_in(existing).map_err(|error| refuse(error.to_string()))?;
        Ok(Self { path })
    }

    /// Creates the folder of a run inside the folder for all runs.
    pub(crate) fn of_run(&self, run: RunId) -> Result<RunFolder, Failure> {
        RunFolder::make(&self.path, run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_leaves_no_trace_and_making_makes_it() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b/c");
        let folder = OutFolder::check(&deep).unwrap();
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        let run = folder.of_run(RunId(7)).unwrap();
        assert_eq!(run.path(), deep.join(RunId(7).to_string()));
        assert!(run.path().is_dir());
        OutFolder::check(&deep).unwrap();
        assert_eq!(std::fs::read_dir(run.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_in_the_way_is_named_and_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for path in [file.join("below"), file.clone()] {
            let Failure::BadInput(reasons) = OutFolder::check(&path).unwrap_err() else {
                panic!("expected Failure::BadInput");
            };
            assert!(reasons[0].contains("cannot be written to") && reasons[0].contains("--out"));
        }
        assert!(file.is_file());
    }
}
