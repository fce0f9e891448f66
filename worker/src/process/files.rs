//! Files that are being written, each on a thread of its own: a disk that hangs holds up nobody but them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Each file under way holds a copy of everything in memory. More than so many are not written at a time, which happens only
/// where a disk hangs.
const FILES_MAX: usize = 3;
/// How long a file that is in the way may take to be removed: the batches behind it wait for that.
const REMOVAL_LIMIT: Duration = Duration::from_secs(1);

/// All files that this process is writing. They outlive the run that they are of, and no two threads write the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Files(Arc<Mutex<Vec<Writing>>>);

#[derive(Debug)]
struct Writing {
    path: PathBuf,
    /// Whether the file is left alone: whoever is told that it is written may want it written again at once.
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
    /// Writes a file and tells how that went. What cannot be begun now is refused with one sentence.
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

    /// Writes a file in the place of another that may have its name, if no other one is under way. `tell` is told before
    /// whether that is so, with the other one gone: what is found under the name is what was told of, or nothing.
    pub(super) fn replace(
        &self,
        path: &Path,
        tell: impl FnOnce(bool) -> io::Result<()>,
        write: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        // Held while it is told of, so that nobody waits for the file who finds no thread yet.
        let mut under_way = self.under_way();
        if !under_way.is_empty() {
            return tell(false);
        }
        let (removed, is_removed) = sync_channel(1);
        let (told, is_told) = channel();
        let old = path.to_owned();
        let work = move || {
            let _ = removed.send(remove(&old));
            // Without that message nobody counts on the file any more.
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

    /// Waits for everything that is under way: it was told of, and the process is about to end.
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

/// Removes a file; whether there is none now.
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
        // A state is not written beside others, and that is told.
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
        // Whoever is told that it is written can write it again at once.
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
        // Where it cannot be removed, nothing is promised and nothing written.
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
