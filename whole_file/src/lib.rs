//! Files that are there whole or not at all: models, checkpoints, workers' states.
//!
//! A [`Part`] is written beside the place that it is for, under a name that nobody can know before, and takes its name
//! when all of it is on the disk. Where anything fails before that, it is gone, and what was there stays.

// Every other crate reads this one, so everything in it says what it is.
#![warn(missing_docs)]

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// What is gathered before the system is called.
const BUFFER_BYTES: usize = 1 << 16;

/// A file that is being written. Dropped before [`Part::keep`], it is gone.
#[derive(Debug)]
pub struct Part {
    file: NamedTempFile,
    place: PathBuf,
}

impl Part {
    /// Begins a file, in a folder that must be there.
    pub fn beside(place: &Path) -> io::Result<Self> {
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

    /// The file as it is now.
    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Where the file is now.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Puts the file in its place, once the disk has all of it.
    pub fn keep(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(&self.place)?;
        Ok(())
    }
}

fn folder_of(place: &Path) -> &Path {
    let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Makes the folder of a file that is going to be written, if it is not there.
pub fn make_folder_of(place: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder_of(place))
}

/// Writes a file whole or not at all, in a folder that must be there.
pub fn write(place: &Path, contents: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>) -> io::Result<()> {
    let mut part = Part::beside(place)?;
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
}
