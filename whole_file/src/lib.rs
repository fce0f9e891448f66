//! Files that are there whole or not at all: models, checkpoints, workers' states.
//!
//! A [`PartialFile`] is written beside its place, under a name that cannot be predicted, and is renamed when all of it
//! is on the disk. If anything fails before that, the partial file is removed and an earlier file stays. Nothing but a
//! regular file or a link is ever replaced: links that others have laid where Tau writes lead nowhere. Code that writes
//! to a path which the user names calls [`target_of`] first, which follows links.

// Every other crate depends on this one, so all of its items are documented.
#![warn(missing_docs)]

mod regular;

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

pub use regular::{OpenError, irregular_kind, is_stream, open};
use tempfile::NamedTempFile;

/// Size in bytes of the buffer through which [`write`] writes a file.
const BUFFER_BYTES: usize = 1 << 16;
/// Maximum number of symbolic links that are followed one after another; more are taken for a loop, as the operating
/// system does.
const LINKS_MAX: usize = 40;

/// A file that is being written beside its final place. It is removed if it is dropped before [`PartialFile::keep`].
#[derive(Debug)]
pub struct PartialFile {
    file: NamedTempFile,
    place: PathBuf,
}

impl PartialFile {
    /// Creates a partial file for `place`, whose folder must exist. If `place` is neither free nor a regular file nor a
    /// link, the error is of kind [`io::ErrorKind::InvalidInput`] and names what it is.
    pub fn beside(place: &Path) -> io::Result<Self> {
        refuse_irregular(place.symlink_metadata().ok().filter(|found| !found.is_symlink()))?;
        let folder = folder_of(place);
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tau-").suffix(".part");
        #[cfg(unix)]
        {
            // Temporary files are private; this becomes an ordinary file, with the rights that the user's mask leaves.
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        Ok(Self {
            file: builder.tempfile_in(folder)?,
            place: place.into(),
        })
    }

    /// Returns the open file, to be written to.
    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Returns the path that the partial file has until [`PartialFile::keep`] moves it to its final place.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Moves the file to its final place, once the disk has all of it.
    pub fn keep(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(&self.place)?;
        Ok(())
    }
}

/// Refuses to replace a file that is not a regular one, such as a device or a folder.
fn refuse_irregular(found: Option<Metadata>) -> io::Result<()> {
    let kind = found.and_then(|found| irregular_kind(found.file_type()));
    let refused = |kind| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the path names {kind}, not a regular file"),
        )
    };
    kind.map_or(Ok(()), |kind| Err(refused(kind)))
}

/// Returns the path to write for a path that the user has named: behind all symbolic links, and free or a regular file.
pub fn target_of(place: &Path) -> io::Result<PathBuf> {
    refuse_irregular(place.metadata().ok())?;
    let mut target = place.to_path_buf();
    for _ in 0..LINKS_MAX {
        match target.read_link() {
            Ok(to) => target = folder_of(&target).join(to),
            Err(_) => return Ok(target),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "the symbolic links of the path form a loop",
    ))
}

fn folder_of(place: &Path) -> &Path {
    let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Creates the folder of a file that is going to be written, if it does not exist.
pub fn make_folder_of(place: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder_of(place))
}

/// Writes a file whole or not at all, in a folder that must exist.
pub fn write(place: &Path, contents: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>) -> io::Result<()> {
    let mut part = PartialFile::beside(place)?;
    let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, part.file());
    contents(&mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    part.keep()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let found = std::fs::read_dir(folder).unwrap();
        found
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    #[test]
    fn a_file_appears_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("made/model");
        assert!(write(&place, |_| Ok(())).is_err());
        make_folder_of(&place).unwrap();
        write(&place, |file| {
            file.write_all(b"first")?;
            assert!(!place.exists());
            Ok(())
        })
        .unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"first");
        write(&place, |file| file.write_all(b"second")).unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"second");
        assert_eq!(names(place.parent().unwrap()), ["model"]);
    }

    #[test]
    fn what_fails_leaves_what_was_there_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("model");
        std::fs::write(&place, "old").unwrap();
        let failed = write(&place, |file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(std::fs::read(&place).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["model"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_and_its_target_is_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("far")).unwrap();
        std::fs::write(at("far/target"), "old").unwrap();
        for (link, to) in [
            ("link", "far/target"),
            ("chain", "link"),
            ("dangling", "far/new"),
            ("loop", "loop"),
        ] {
            std::os::unix::fs::symlink(to, at(link)).unwrap();
        }
        let follow = |name, text: &[u8]| write(&target_of(&at(name))?, |file| file.write_all(text));
        follow("chain", b"whole").unwrap();
        assert_eq!(std::fs::read(at("far/target")).unwrap(), b"whole");
        follow("dangling", b"new").unwrap();
        assert_eq!(std::fs::read(at("far/new")).unwrap(), b"new");
        assert!(follow("loop", b"").is_err());
        for link in ["link", "chain", "dangling", "loop"] {
            assert!(at(link).is_symlink(), "{link}");
        }
        assert_eq!(names(&at("far")).len(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_regular_file_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(!is_stream(&at("nothing")));
        std::fs::create_dir(at("folder")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        make_pipe(&at("pipe"));
        std::os::unix::fs::symlink("pipe", at("link")).unwrap();
        for (name, kind) in [
            ("folder", "a folder"),
            ("socket", "a socket"),
            ("pipe", "a pipe"),
            ("link", "a pipe"),
        ] {
            assert!(target_of(&at(name)).is_err(), "{name}");
            let before = std::fs::metadata(at(name)).unwrap().file_type();
            if name != "link" {
                let error = write(&at(name), |file| file.write_all(b"x")).unwrap_err();
                assert!(error.to_string().contains(kind), "{name}: {error}");
            }
            assert_eq!(std::fs::metadata(at(name)).unwrap().file_type(), before, "{name}");
            assert_eq!(is_stream(&at(name)), kind == "a pipe", "{name}");
            assert!(matches!(open(&at(name)), Err(OpenError::NotRegular(found)) if found == kind));
        }
    }

    #[cfg(unix)]
    fn make_pipe(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }
}
