//! The folder a model is saved to: proven writable before training, made only when there is something to save.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use protocol::job::{Job, JobDraft};
use protocol::stats::Finished;

use crate::failure::Failure;

/// The model's name in the folder.
const MODEL: &str = "model.safetensors";
/// The name of what the run came to.
pub(crate) const RESULT: &str = "result.json";
/// The name of what was trained.
pub(crate) const JOB: &str = "job.toml";

/// A folder that can be written to, though it may not exist yet.
#[derive(Debug)]
pub(crate) struct OutFolder {
    path: PathBuf,
}

impl OutFolder {
    /// Proves that a model can be written to the folder, and leaves no trace of the proof.
    pub(crate) fn check(path: &Path) -> Result<Self, Failure> {
        let refuse = |why: String| {
            let path = path.display();
            Failure::input(format!(
                "{path} cannot be written to: {why}; give another folder with --out"
            ))
        };
        let path = std::path::absolute(path).map_err(|error| refuse(error.to_string()))?;
        if path.join(MODEL).is_dir() {
            return Err(refuse(format!("{MODEL} in it is a folder")));
        }
        // A folder that does not exist can be made where the nearest one above it can be written to.
        let existing = path.ancestors().find(|folder| folder.exists()).unwrap_or(&path);
        tempfile::tempfile_in(existing).map_err(|error| refuse(error.to_string()))?;
        Ok(Self { path })
    }

    /// Keeps what the run came to, and its job, beside the model.
    pub(crate) fn keep(&self, finished: &Finished, job: &Job) -> Result<(), Failure> {
        let result = serde_json::to_string_pretty(finished).map_err(Failure::work)?;
        let job = JobDraft::from(job).to_toml().map_err(Failure::work)?;
        for (name, text) in [(RESULT, result + "\n"), (JOB, job)] {
            let write = whole_file::write(&self.path.join(name), |file| file.write_all(text.as_bytes()));
            write.map_err(|error| self.not_written(name, &error))?;
        }
        Ok(())
    }

    /// Why the model is not there.
    pub(crate) fn model_not_written(&self, error: &std::io::Error) -> Failure {
        self.not_written(MODEL, error)
    }

    fn not_written(&self, name: &str, error: &std::io::Error) -> Failure {
        let path = self.path.join(name);
        Failure::Failed(format!(
            "{} could not be written: make room for it, or give another folder with --out ({error})",
            path.display()
        ))
    }

    /// Makes the folder, and says where in it the model goes.
    pub(crate) fn make(&self) -> Result<PathBuf, Failure> {
        let folder = self.path.display();
        std::fs::create_dir_all(&self.path)
            .map_err(|error| Failure::Failed(format!("{folder} could not be made: {error}")))?;
        Ok(self.path.join(MODEL))
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
        assert_eq!(folder.make().unwrap(), deep.join(MODEL));
        assert!(deep.is_dir());
        OutFolder::check(&deep).unwrap();
        assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 0);
    }

    #[test]
    fn what_is_in_the_way_is_named_and_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "x").unwrap();
        std::fs::create_dir_all(root.path().join("taken").join(MODEL)).unwrap();
        for path in [file.join("below"), file.clone(), root.path().join("taken")] {
            let Failure::BadInput(reasons) = OutFolder::check(&path).unwrap_err() else {
                panic!("it is the user's mistake");
            };
            assert!(reasons[0].contains("cannot be written to") && reasons[0].contains("--out"));
        }
        assert!(file.is_file());
    }
}
