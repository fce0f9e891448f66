//! Files that are being written, each on a thread of its own, so that a hanging disk blocks nothing else.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Largest number of files that are written at the same time. Each holds a copy of its contents in memory; more are
/// pending only if a disk hangs.
const FILES_MAX: usize = 3;
/// Longest time to wait for the removal of an old file: messages to the node, such as batches, wait meanwhile.
const REMOVAL_LIMIT: Duration = Duration::from_secs(1);

/// All files that this process is writing. They outlive their run, and no two threads write the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Files(Arc<Mutex<Vec<Writing>>>);

#[derive(Debug)]
struct Writing {
    path: PathBuf,
    /// True once the file is completely written. Set before the file is reported as complete, because it may be written
    /// again right after that.
    written: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writing {
    fn start<T>(
        path: &Path,
        write: impl FnOnce() -> T + Send + 'static,
        tell: impl FnOnce(T) + Send + 'static,
    ) -> io::Result<Self> {
        let written = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&written);
        let thread = std::thread::Builder::new().name("saver".into()).spawn(move || {
            let outcome = write();
            done.store(true, Ordering::Release);
            tell(outcome);
        })?;
        Ok(Self {
            path: path.into(),
            written,
            thread,
        })
    }
}

impl Files {
    /// Writes a file in the background and reports the result with `tell`. If the write cannot begin now, the error is
    /// one sentence.
    pub(super) fn write<T>(
        &self,
        path: &Path,
        write: impl FnOnce() -> T + Send + 'static,
        tell: impl FnOnce(T) + Send + 'static,
    ) -> Result<(), String> {
        let mut under_way = self.under_way();
        if under_way.len() >= FILES_MAX || under_way.iter().any(|file| file.path == path) {
            return Err(format!(
                "{} cannot be written now: the disk has not finished writing earlier files",
                path.display()
            ));
        }
        let started = Writing::start(path, write, tell);
        under_way.push(started.map_err(|error| format!("{} cannot be written: {error}", path.display()))?);
        Ok(())
    }

    /// Replaces a file in the background. While another file is being written, only calls `tell` with `false`. Else
    /// removes the old file, calls `tell` with `true` (or `false` if that failed or takes long), and writes the new
    /// file only after `true`. So a file that exists under this name is the announced one.
    pub(super) fn replace(
        &self,
        path: &Path,
        tell: impl FnOnce(bool) -> io::Result<()>,
        write: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        // Held until the file is announced, so that every waiting thread finds the writer's thread.
        let mut under_way = self.under_way();
        if !under_way.is_empty() {
            return tell(false);
        }
        let (removed, is_removed) = sync_channel(1);
        let (told, is_told) = channel();
        let old = path.to_owned();
        let work = move || {
            let _ = removed.send(remove(&old));
            // Without that message the file was not announced, and is not written.
            if is_told.recv().is_ok() {
                write();
            }
        };
        under_way.push(Writing::start(path, work, |()| ())?);
        let ready = is_removed.recv_timeout(REMOVAL_LIMIT).unwrap_or(false);
        tell(ready)?;
        if ready {
            let _ = told.send(());
        }
        Ok(())
    }

    /// Waits for all files that are being written, before the process ends: the node was told that they will appear.
    pub(super) fn wait(&self) {
        let all = std::mem::take(&mut *self.under_way());
        for file in all {
            let _ = file.thread.join();
        }
    }

    fn under_way(&self) -> MutexGuard<'_, Vec<Writing>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|file| !file.written.load(Ordering::Acquire));
        all
    }
}

/// Removes a file. Returns true if no file is at the path now.
fn remove(path: &Path) -> bool {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::error!(
                event = "file_replace_failed",
                "the old file {} could not be removed and is not replaced: {error}",
                path.display()
            );
            false
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_one_writer_and_hung_ones_are_few() {
        let files = Files::default();
        let (release, hung) = channel::<()>();
        let hung = Arc::new(Mutex::new(hung));
        let hang = || {
            let hung = Arc::clone(&hung);
            move || {
                let _ = hung.lock().unwrap().recv();
            }
        };
        let file = |name: &str| PathBuf::from(name);
        assert_eq!(files.write(&file("0"), hang(), |()| ()), Ok(()));
        assert!(
            files.write(&file("0"), || (), |()| ()).is_err(),
            "one file must not have two writers"
        );
        for other in 1..FILES_MAX {
            assert_eq!(files.write(&file(&other.to_string()), hang(), |()| ()), Ok(()));
        }
        let error = files.write(&file("another"), || (), |()| ()).unwrap_err();
        assert!(error.starts_with("another cannot be written now: the disk"), "{error}");
        // A state is not written beside other files, and that is reported.
        let mut told = None;
        let tell = |ready| {
            told = Some(ready);
            Ok(())
        };
        files
            .replace(&file("state"), tell, || panic!("the file must not be written"))
            .unwrap();
        assert_eq!(told, Some(false));
        drop(release);
        files.wait();
        // The file can be written again as soon as its completion is reported.
        let (told, is_told) = channel();
        let again = files.clone();
        let tell = move |()| told.send(again.write(&file("0"), || (), |()| ())).unwrap();
        assert_eq!(files.write(&file("0"), || (), tell), Ok(()));
        assert_eq!(is_told.recv(), Ok(Ok(())));
    }

    #[test]
    fn what_was_there_is_gone_before_it_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        std::fs::write(&path, "old").unwrap();
        let files = Files::default();
        let tell = |ready| {
            assert!(ready && !path.exists());
            Ok(())
        };
        let new = path.clone();
        files
            .replace(&path, tell, move || std::fs::write(new, "new").unwrap())
            .unwrap();
        files.wait();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        // If the old file cannot be removed, nothing is announced and nothing written.
        let taken = folder.path().join("folder");
        std::fs::create_dir(&taken).unwrap();
        let tell = |ready: bool| {
            assert!(!ready);
            Ok(())
        };
        files
            .replace(&taken, tell, || panic!("the file must not be written"))
            .unwrap();
        files.wait();
    }
}
