//! The folder of one run, with its model, job, result and journal. Folders of other runs are never changed.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use protocol::ids::RunId;
use protocol::job::{Job, JobDraft};
use protocol::stats::Finished;

use crate::failure::Failure;

/// File name of the model in a run's folder.
const MODEL: &str = "model.safetensors";
/// File name of the run's result in its folder.
pub(crate) const RESULT: &str = "result.json";
/// File name of the run's job in its folder.
pub(crate) const JOB: &str = "job.toml";
/// Name of the symbolic link to the newest run's folder, in the folder that holds all runs.
const LATEST: &str = "latest";

/// Returns the run whose folder this is, from the folder's name; clients and nodes name run folders alike.
pub(crate) fn run_named(folder: &Path) -> Option<RunId> {
    let name = folder.file_name()?.to_str()?;
    let run = u64::from_str_radix(name, 16).ok().filter(|_| name.len() == 16);
    run.map(RunId)
}

/// Resolves the path of a model that a user has given. If the path lies in the folder of a run that has left no model,
/// returns an error that names the newest model beside that folder.
pub(crate) fn named_model(path: OsString) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    let folder = path.parent().unwrap_or(Path::new(""));
    let is_run = folder.join(JOB).is_file() && path.file_name().is_some_and(|name| name == MODEL);
    if path.exists() || !is_run {
        return Ok(path);
    }
    // A link such as `latest` stands for the run that it points at.
    let target = folder.canonicalize().unwrap_or_else(|_| folder.into());
    let run = target.file_name().unwrap_or_default().display();
    let beside = match newest_model(&folder.join("..")) {
        Some(name) => {
            let model = folder.parent().unwrap_or(Path::new("..")).join(name).join(MODEL);
            format!("the newest model is {}", model.display())
        }
        None => "no other run in the same folder has a model".into(),
    };
    Err(format!(
        "run {run} has no model, because the run failed or is not over; {beside}"
    ))
}

/// Returns the name of the folder with the newest model among the runs' folders in `among`.
fn newest_model(among: &Path) -> Option<OsString> {
    let folders = std::fs::read_dir(among).ok()?.flatten();
    let written = folders.filter(|entry| !entry.path().is_symlink()).filter_map(|entry| {
        let written = std::fs::metadata(entry.path().join(MODEL)).and_then(|found| found.modified());
        Some((written.ok()?, entry.file_name()))
    });
    written.max().map(|(_, name)| name)
}

/// An existing folder of one run, with its job, result, model and journal.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
    /// Path of `latest` if it is not a symbolic link but another file or folder, which is left unchanged: the user is
    /// warned of it.
    not_latest: Option<PathBuf>,
}

impl RunFolder {
    /// Creates the folder of a run and points `latest` at it. A folder that already holds a result, as of another
    /// client that followed the run, stays unchanged: the new folder then has a number in its name.
    pub(crate) fn make(among: &Path, run: RunId) -> Result<Self, Failure> {
        let names = std::iter::once(run.to_string()).chain((2..).map(|number| format!("{run}-{number}")));
        let mut free = names.filter(|name| !among.join(name).join(RESULT).exists());
        let name = free.next().unwrap_or_default();
        let path = among.join(&name);
        std::fs::create_dir_all(&path)
            .map_err(|error| Failure::Failed(format!("cannot create the folder {}: {error}", path.display())))?;
        let not_latest = point_at(among, &name);
        Ok(Self { path, not_latest })
    }

    /// Creates or opens the folder that a node keeps for a run, at the given path.
    pub(crate) fn at(path: PathBuf) -> std::io::Result<Self> {
        std::fs::create_dir_all(&path)?;
        let not_latest = None;
        Ok(Self { path, not_latest })
    }

    pub(crate) fn not_latest(&self) -> Option<&Path> {
        self.not_latest.as_deref()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the model in this folder.
    pub(crate) fn model(&self) -> PathBuf {
        self.path.join(MODEL)
    }

    /// Opens the file of this name in the run's folder for appending lines.
    pub(crate) fn append(&self, name: &str) -> std::io::Result<File> {
        File::options().create(true).append(true).open(self.path.join(name))
    }

    pub(crate) fn keep_job(&self, job: &Job) -> Result<(), Failure> {
        let job = JobDraft::from(job).to_toml().map_err(Failure::work)?;
        self.write(JOB, &job)
    }

    pub(crate) fn keep_result(&self, finished: &Finished) -> Result<(), Failure> {
        let result = serde_json::to_string_pretty(finished).map_err(Failure::work)?;
        self.write(RESULT, &(result + "\n"))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let write = whole_file::write(&self.path.join(name), |file| file.write_all(text.as_bytes()));
        write.map_err(|error| self.not_written(name, &error))
    }

    /// Returns the failure of a run whose model could not be written to its folder.
    pub(crate) fn model_not_written(&self, error: &std::io::Error) -> Failure {
        self.not_written(MODEL, error)
    }

    /// Returns the failure of a run because the file of this name could not be written to the run's folder.
    pub(crate) fn not_written(&self, name: &str, error: &std::io::Error) -> Failure {
        let path = self.path.join(name);
        Failure::Failed(format!(
            "{} could not be written: make room for it, or give another folder with --out ({error})",
            path.display()
        ))
    }
}

/// Makes `latest` in the folder `among` a symbolic link to the folder `name` beside it, in one atomic rename. If
/// `latest` exists and is not a symbolic link, it is left unchanged and its path is returned.
fn point_at(among: &Path, name: &str) -> Option<PathBuf> {
    #[cfg(unix)]
    {
        let latest = among.join(LATEST);
        if latest.symlink_metadata().is_ok_and(|found| !found.is_symlink()) {
            return Some(latest);
        }
        let new = among.join(format!(".{LATEST}-{}", std::process::id()));
        if std::os::unix::fs::symlink(name, &new).is_ok() && std::fs::rename(&new, &latest).is_err() {
            let _ = std::fs::remove_file(&new);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_a_folder_and_what_is_there_stays() {
        let among = tempfile::tempdir().unwrap();
        let latest = || std::fs::read_link(among.path().join(LATEST)).unwrap();
        let first = RunFolder::make(among.path(), RunId(7)).unwrap();
        assert_eq!(latest(), PathBuf::from(RunId(7).to_string()));
        // A client that died has left no result: the client that attaches next continues in the same folder.
        assert_eq!(RunFolder::make(among.path(), RunId(7)).unwrap().path(), first.path());
        std::fs::write(first.path().join(RESULT), "{}").unwrap();
        let again = RunFolder::make(among.path(), RunId(7)).unwrap();
        assert_eq!(again.path(), among.path().join(format!("{}-2", RunId(7))));
        assert_eq!(latest(), PathBuf::from(format!("{}-2", RunId(7))));
        assert_eq!(std::fs::read_dir(among.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_run_without_a_model_is_named_and_so_is_the_newest_model() {
        let among = tempfile::tempdir().unwrap();
        let model = |folder: &str| among.path().join(folder).join(MODEL);
        let (trained, failed) = (RunId(7).to_string(), RunId(8).to_string());
        for run in [RunId(7), RunId(8)] {
            let folder = RunFolder::make(among.path(), run).unwrap();
            std::fs::write(folder.path().join(JOB), "").unwrap();
        }
        let refused = || named_model(model(LATEST).into()).unwrap_err();
        assert_eq!(
            refused(),
            format!(
                "run {failed} has no model, because the run failed or is not over; no other run in the same folder \
                 has a model"
            )
        );
        std::fs::write(model(&trained), "").unwrap();
        let newest = format!("the newest model is {}", model(&trained).display());
        assert!(refused().ends_with(&newest), "{}", refused());
        // Existing paths are returned as they are, and missing paths outside runs' folders are left to the reader of
        // the file.
        for path in [
            model(&trained),
            among.path().join("elsewhere").join(MODEL),
            among.path().join("x"),
        ] {
            assert_eq!(named_model(path.clone().into()), Ok(path));
        }
    }

    #[test]
    fn what_has_the_links_name_is_left_alone() {
        let among = tempfile::tempdir().unwrap();
        std::fs::create_dir(among.path().join(LATEST)).unwrap();
        let folder = RunFolder::make(among.path(), RunId(7)).unwrap();
        assert!(!among.path().join(LATEST).is_symlink());
        assert_eq!(folder.not_latest(), Some(&*among.path().join(LATEST)));
    }
}
