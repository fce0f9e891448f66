//! The temporary folder of a local cluster. It is removed when the cluster ends or, if its process was killed, by the
//! next local cluster.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

/// File name of the credentials in a local cluster's temporary folder.
pub(crate) const CREDENTIALS: &str = "cluster.pem";
const PREFIX: &str = "tau-train-";
/// Name of the file in a scratch folder that the folder's owning process keeps locked, so that other processes do not
/// remove the folder. The system releases the lock whenever the process ends.
const OWNER: &str = "owner";
/// Number of attempts to remove a folder to which processes may still write.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(20);

/// A temporary folder that is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: TempDir,
    _owner: File,
}

impl Scratch {
    /// Creates a scratch folder in the system's temporary folder, and removes scratch folders of processes that have
    /// ended.
    pub(crate) fn new() -> io::Result<Self> {
        let among = std::env::temp_dir();
        let scratch = Self::within(&among)?;
        sweep(&among, &scratch);
        Ok(scratch)
    }

    fn within(among: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(among)?;
        // The file gets its name only after it is locked: otherwise another process could take the folder for an
        // abandoned one.
        let unlocked = folder.path().join("owner.new");
        let owner = File::create_new(&unlocked)?;
        owner.lock()?;
        std::fs::rename(&unlocked, folder.path().join(OWNER))?;
        Ok(Self { folder, _owner: owner })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves the scratch folder to the user: neither this process nor a later one removes it.
    pub(crate) fn keep(&mut self) -> io::Result<()> {
        leave_to_user(self.path())?;
        self.folder.disable_cleanup(true);
        Ok(())
    }
}

/// Leaves a scratch folder to the user: later runs do not remove it.
pub(crate) fn leave_to_user(folder: &Path) -> io::Result<()> {
    match std::fs::remove_file(folder.join(OWNER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a scratch folder whose nodes were killed. Retries, because their workers may write to it until they notice.
pub(crate) fn remove(folder: &Path) {
    for _ in 0..ATTEMPTS {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => std::thread::sleep(PAUSE),
            _ => return,
        }
    }
}

/// Removes those scratch folders of the user whose owning processes have ended.
fn sweep(among: &Path, own: &Scratch) {
    let Ok(user) = std::fs::metadata(own.path()).map(|own| own.uid()) else {
        return;
    };
    for entry in std::fs::read_dir(among).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        // Folders of other users and targets of links are left alone.
        let is_folder = |found: Metadata| found.is_dir() && found.uid() == user;
        if ours && std::fs::symlink_metadata(entry.path()).is_ok_and(is_folder) {
            remove_if_dead(&entry.path());
        }
    }
}

fn remove_if_dead(folder: &Path) {
    let Ok(owner) = File::open(folder.join(OWNER)) else {
        return;
    };
    // The lock is held during the removal, so that only one of two concurrent sweeps removes the folder.
    if owner.try_lock().is_ok() {
        // Files that cannot be removed are left for a later sweep. The owner file goes last, because it marks the
        // folder as abandoned.
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name() != OWNER) {
            let path = entry.path();
            let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
        }
        let _ = std::fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(among: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(among)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_folders_of_dead_owners_are_removed() {
        let among = tempfile::tempdir().unwrap();
        let at = |name: &str| among.path().join(name);
        // An abandoned folder with files that nodes leave in it.
        std::fs::create_dir_all(at("tau-train-dead/0/run")).unwrap();
        std::fs::write(at("tau-train-dead/owner"), "").unwrap();
        // Folders with a living owner, or with an unknown one.
        std::fs::create_dir_all(at("tau-other")).unwrap();
        std::fs::write(at("tau-other/owner"), "").unwrap();
        std::fs::create_dir_all(at("tau-train-kept")).unwrap();
        std::fs::write(at("tau-train-file"), "").unwrap();
        std::os::unix::fs::symlink(at("tau-other"), at("tau-train-link")).unwrap();
        let living = Scratch::within(among.path()).unwrap();
        let own = Scratch::within(among.path()).unwrap();
        sweep(among.path(), &own);
        let kept = ["tau-other", "tau-train-file", "tau-train-kept", "tau-train-link"];
        let mut expected: Vec<String> = kept.iter().map(|name| (*name).into()).collect();
        for scratch in [&living, &own] {
            expected.push(scratch.path().file_name().unwrap().to_str().unwrap().into());
        }
        expected.sort();
        assert_eq!(names(among.path()), expected);
        assert!(at("tau-other/owner").exists());
    }

    #[test]
    fn it_is_gone_in_the_end_unless_it_is_kept() {
        let among = tempfile::tempdir().unwrap();
        drop(Scratch::within(among.path()).unwrap());
        assert!(names(among.path()).is_empty());
        let mut kept = Scratch::within(among.path()).unwrap();
        kept.keep().unwrap();
        drop(kept);
        let own = Scratch::within(among.path()).unwrap();
        sweep(among.path(), &own);
        assert_eq!(names(among.path()).len(), 2);
    }
}
