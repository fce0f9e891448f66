//! The folder of a study: the study itself, and one line for every run that is over.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::plan::{Planned, Study};
use super::row::Row;
use crate::failure::Failure;

/// File name of a study's description in its folder.
const STUDY: &str = "study.toml";
/// File name of the runs' records in a study's folder, with one line of JSON for each run.
const RUNS: &str = "runs.jsonl";

/// Open folder of one study. The file of the runs' records is locked against other processes.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    pub(crate) rows: Vec<Row>,
    runs: File,
}

impl Store {
    /// Opens or creates the folder of a study. An incomplete last record, left by a process that died, is removed.
    pub(crate) fn open(folder: &Path, study: &Study) -> Result<Self, Failure> {
        let shown = folder.display();
        let io = |error: io::Error| {
            Failure::input(format!(
                "{shown} cannot be written to: {error}; give another folder with --out"
            ))
        };
        let text = study.to_toml().map_err(Failure::input)?;
        let place = folder.join(STUDY);
        match std::fs::read_to_string(&place) {
            Ok(there) if Study::from_toml(&there).ok().as_ref() == Some(study) => {}
            Ok(_) => {
                return Err(Failure::input(format!(
                    "{shown} holds another study: give another folder with --out, or remove it"
                )));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if folder.join(RUNS).exists() {
                    return Err(Failure::input(format!(
                        "{shown} holds {RUNS}, but no {STUDY}: give another folder with --out"
                    )));
                }
                std::fs::create_dir_all(folder).map_err(io)?;
                whole_file::write(&place, |file| file.write_all(text.as_bytes())).map_err(io)?;
            }
            Err(error) => return Err(io(error)),
        }
        let path = folder.join(RUNS);
        let (rows, sound) = read(&path).map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
        let runs = OpenOptions::new().create(true).append(true).open(&path).map_err(io)?;
        runs.try_lock().map_err(|_| {
            Failure::input(format!(
                "another 'tau study' is writing to {shown}: wait until it ends, or give another folder with --out"
            ))
        })?;
        runs.set_len(sound).map_err(io)?;
        Ok(Self {
            folder: folder.into(),
            rows,
            runs,
        })
    }

    /// Removes the records of failed runs from the study's folder, so that these runs are repeated.
    pub(crate) fn forget_failures(&mut self) -> Result<(), Failure> {
        self.rows.retain(|row| row.error.is_none());
        let mut lines = Vec::new();
        for row in &self.rows {
            serde_json::to_writer(&mut lines, row).map_err(Failure::work)?;
            lines.push(b'\n');
        }
        let path = self.folder.join(RUNS);
        whole_file::write(&path, |file| file.write_all(&lines)).map_err(Failure::work)?;
        // The old handle refers to the replaced file.
        self.runs = OpenOptions::new().append(true).open(&path).map_err(Failure::work)?;
        self.runs
            .try_lock()
            .map_err(|_| Failure::input("another 'tau study' is writing to the study's folder: wait until it ends"))
    }

    /// Returns the folder for the model of the study's run under way, which is deleted after the run.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.folder.join(".run")
    }

    /// Returns true if the study's folder has a record of this planned run.
    pub(crate) fn has(&self, run: &Planned) -> bool {
        self.rows.iter().any(|row| row.is_of(run))
    }

    /// Appends the record of a run to the study's folder. If the disk is full, the earlier records stay whole.
    pub(crate) fn add(&mut self, row: Row) -> Result<(), Failure> {
        let before = self.runs.metadata().map_err(Failure::work)?.len();
        let mut line = serde_json::to_vec(&row).map_err(Failure::work)?;
        line.push(b'\n');
        let written = self.runs.write_all(&line).and_then(|()| self.runs.sync_data());
        if let Err(error) = written {
            // An incomplete line that cannot be cut off here is cut off when the study is opened again.
            let _ = self.runs.set_len(before);
            return Err(Failure::Failed(format!(
                "{} could not be written to ({error}): free disk space, and run the same command again; {} runs are \
                 kept",
                self.folder.join(RUNS).display(),
                self.rows.len()
            )));
        }
        self.rows.push(row);
        Ok(())
    }
}

/// Reads a study and the records of its runs from a folder, for a report; `None` if the folder holds no study.
pub(crate) fn load(folder: &Path) -> Result<Option<(Study, Vec<Row>)>, String> {
    let text = match std::fs::read_to_string(folder.join(STUDY)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let study = Study::from_toml(&text).map_err(|error| format!("{STUDY}: {error}"))?;
    let (rows, _) = read(&folder.join(RUNS))?;
    Ok(Some((study, rows)))
}

/// Reads the records of a study's runs from a file, and the number of bytes up to the end of the last whole line.
fn read(path: &Path) -> Result<(Vec<Row>, u64), String> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error.to_string()),
    };
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let mut rows = Vec::new();
    for (number, line) in (1..).zip(bytes[..whole].split(|&byte| byte == b'\n')) {
        if !line.is_empty() {
            let row = serde_json::from_slice(line)
                .map_err(|error| format!("line {number} is not the record of a run: {error}"))?;
            rows.push(row);
        }
    }
    Ok((rows, whole as u64))
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    fn study(title: &str) -> Study {
        Study {
            title: title.into(),
            ..Study::of_flags()
        }
    }

    #[test]
    fn what_was_kept_is_there_again_and_a_cut_line_is_not() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/study");
        let rows = [row("strom", 1, 1, 0.5, 1.0), row("ring", 1, 1, 0.1 + 0.2, 1.0)];
        let mut store = Store::open(&folder, &study("one")).unwrap();
        for row in &rows {
            store.add(row.clone()).unwrap();
        }
        drop(store);
        let whole = std::fs::read(folder.join(RUNS)).unwrap();
        std::fs::write(folder.join(RUNS), [&whole[..], &whole[..40]].concat()).unwrap();
        let mut store = Store::open(&folder, &study("one")).unwrap();
        assert_eq!(store.rows, rows);
        store.add(rows[0].clone()).unwrap();
        assert_eq!(load(&folder).unwrap().unwrap().1.len(), 3);
    }

    #[test]
    fn failures_are_kept_until_they_are_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let mut store = Store::open(root.path(), &study("one")).unwrap();
        let mut failed = row("ring", 1, 1, 0.5, 1.0);
        (failed.result, failed.error) = (None, Some("no".into()));
        let good = row("strom", 1, 1, 0.5, 1.0);
        for row in [&good, &failed] {
            store.add(row.clone()).unwrap();
        }
        assert!(
            Store::open(root.path(), &study("one")).is_err(),
            "a second study in the same folder must be refused"
        );
        store.forget_failures().unwrap();
        store.add(good.clone()).unwrap();
        drop(store);
        assert_eq!(load(root.path()).unwrap().unwrap().1, [good.clone(), good]);
    }

    #[test]
    fn a_folder_with_something_else_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let refused = |folder: &Path| match Store::open(folder, &study("two")).unwrap_err() {
            Failure::BadInput(reasons) => reasons.join("; "),
            other => panic!("{other:?}"),
        };
        let other = root.path().join("other");
        Store::open(&other, &study("one")).unwrap();
        assert!(refused(&other).contains("another study"));
        let broken = root.path().join("broken");
        Store::open(&broken, &study("two")).unwrap();
        std::fs::write(broken.join(RUNS), "{}\n").unwrap();
        assert!(refused(&broken).contains("line 1 is not the record of a run"));
        assert_eq!(std::fs::read_to_string(broken.join(RUNS)).unwrap(), "{}\n");
        let file = root.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(refused(&file.join("below")).contains("--out"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_loses_nothing_that_was_kept() {
        let root = tempfile::tempdir().unwrap();
        let mut store = Store::open(root.path(), &study("one")).unwrap();
        store.add(row("strom", 1, 1, 0.5, 1.0)).unwrap();
        store.runs = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let Failure::Failed(reason) = store.add(row("ring", 1, 1, 0.5, 1.0)).unwrap_err() else {
            panic!("a full disk must be a Failure::Failed");
        };
        assert!(
            reason.contains("free disk space") && reason.contains("1 runs are kept"),
            "{reason}"
        );
        assert_eq!(load(root.path()).unwrap().unwrap().1.len(), 1);
    }
}
