//! The folder of one run: its model, its job, what it came to, and what happened meanwhile. No other run's is touched.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use protocol::ids::RunId;
use protocol::job::{Job, JobDraft};
use protocol::stats::Finished;

use crate::failure::Failure;

/// The model's name in the folder.
const MODEL: &str = "model.safetensors";
/// The name of what the run came to.
pub(crate) const RESULT: &str = "result.json";
/// The name of what was trained.
pub(crate) const JOB: &str = "job.toml";
/// The link to the newest run's folder, beside it.
const LATEST: &str = "latest";

/// The run whose folder this is, by its name; clients and nodes name them alike.
pub(crate) fn run_named(folder: &Path) -> Option<RunId> {
    let name = folder.file_name()?.to_str()?;
    let run = u64::from_str_radix(name, 16).ok().filter(|_| name.len() == 16);
    run.map(RunId)
}

/// The path of a model that a user has named. In the folder of a run that has left no model it is refused, and the newest
/// model beside that folder is named instead.
pub(crate) fn named_model(path: OsString) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    let folder = path.parent().unwrap_or(Path::new(""));
    let is_run = folder.join(JOB).is_file() && path.file_name().is_some_and(|name| name == MODEL);
    if path.exists() || !is_run {
        return Ok(path);
    }
    // A link such as 'latest' means the run that it points at.
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

/// The name of the folder that holds the newest model among the runs in a folder.
fn newest_model(among: &Path) -> Option<OsString> {
    let folders = std::fs::read_dir(among).ok()?.flatten();
    let written = folders.filter(|entry| !entry.path().is_symlink()).filter_map(|entry| {
        let written = std::fs::metadata(entry.path().join(MODEL)).and_then(|found| found.modified());
        Some((written.ok()?, entry.file_name()))
    });
    written.max().map(|(_, name)| name)
}

/// A folder that is there.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
    /// Something else than a link that has the name of the link to the newest run.
    not_latest: Option<PathBuf>,
}

impl RunFolder {
    /// Makes the folder of a run, and has `latest` point at it. What was fetched before, as by another client that had
    /// attached, stays as it is: then this one has a number.
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

    /// The folder that a node has for a run.
    pub(crate) fn at(path: PathBuf) -> std::io::Result<Self> {
        std::fs::create_dir_all(&path)?;
        let not_latest = None;
        Ok(Self { path, not_latest })
    }

    /// The file or folder that keeps `latest` from leading to this run.
    pub(crate) fn not_latest(&self) -> Option<&Path> {
        self.not_latest.as_deref()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the model goes.
    pub(crate) fn model(&self) -> PathBuf {
        self.path.join(MODEL)
    }

    /// A file of this name, for what comes line by line.
    pub(crate) fn append(&self, name: &str) -> std::io::Result<File> {
        File::options().create(true).append(true).open(self.path.join(name))
    }

    /// Keeps what is trained.
    pub(crate) fn keep_job(&self, job: &Job) -> Result<(), Failure> {
        let job = JobDraft::from(job).to_toml().map_err(Failure::work)?;
        self.write(JOB, &job)
    }

    /// Keeps what the run came to, beside the model.
    pub(crate) fn keep_result(&self, finished: &Finished) -> Result<(), Failure> {
        let result = serde_json::to_string_pretty(finished).map_err(Failure::work)?;
        self.write(RESULT, &(result + "\n"))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let write = whole_file::write(&self.path.join(name), |file| file.write_all(text.as_bytes()));
        write.map_err(|error| self.not_written(name, &error))
    }

    /// Why the model is not there.
    pub(crate) fn model_not_written(&self, error: &std::io::Error) -> Failure {
        self.not_written(MODEL, error)
    }

    /// Why a file of this name is not there.
    pub(crate) fn not_written(&self, name: &str, error: &std::io::Error) -> Failure {
        let path = self.path.join(name);
        Failure::Failed(format!(
            "{} could not be written: make room for it, or give another folder with --out ({error})",
            path.display()
        ))
    }
}

/// Has `latest` point at a folder, at once. Returns what has the name and is no link.
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
        // A client that died has left no result: whoever attaches goes on in the same folder.
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
        // What is there is taken, and what is no run's model is left to whoever reads it.
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
