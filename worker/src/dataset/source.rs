//! Opens files that data is read from: only regular files and, if they are read whole, none that exceeds the memory
//! budget.
//!
//! A job may come from another machine and name anything. Opening a pipe can block for ever, and a device may never
//! end.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use whole_file::OpenError;

use super::DatasetError;
use super::budget::{Budget, size};

/// Bytes that suffice to recognise the kind of a file.
const FIRST_BYTES: u64 = 512;

/// Opens a file that will be read into memory whole; never blocks.
pub(super) fn open(path: &Path) -> Result<File, DatasetError> {
    let file = open_of_any_size(path)?;
    let bytes = file.metadata().map_err(DatasetError::read(path))?.len();
    Budget::of_machine().take(bytes, path, || size(bytes))?;
    Ok(file)
}

/// Opens a file that is read piece by piece; never blocks.
pub(super) fn open_of_any_size(path: &Path) -> Result<File, DatasetError> {
    whole_file::open(path).map_err(|error| match error {
        OpenError::NotRegular(found) => DatasetError::NotAFile {
            file: path.to_owned(),
            found,
        },
        OpenError::Io(source) => DatasetError::read(path)(source),
    })
}

/// Returns the first bytes of a file, or fewer if it is short or cannot be read; for error messages.
pub(super) fn first_bytes(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = open_of_any_size(path) {
        let _ = file.take(FIRST_BYTES).read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(all(test, unix))]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn refused(path: &Path, says: &str) {
        let error = open(path).unwrap_err();
        assert!(matches!(error, DatasetError::NotAFile { .. }), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
    }

    #[test]
    fn only_regular_files_are_opened_and_nobody_waits() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let pipe = CString::new(at("pipe").as_os_str().as_bytes()).unwrap();
        // SAFETY: the name is a string that ends with a zero and lives as long as the call.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        let _socket = UnixListener::bind(at("socket")).unwrap();
        refused(&at("pipe"), "is a pipe");
        refused(&at("socket"), "is a socket");
        refused(folder.path(), "is a folder");
        refused(Path::new("/dev/zero"), "is a device");
        // Links are followed, whether they lead to a regular file or not.
        std::fs::write(at("data"), "1,2,a").unwrap();
        for (link, to) in [("good", "data"), ("bad", "pipe")] {
            std::os::unix::fs::symlink(at(to), at(link)).unwrap();
        }
        refused(&at("bad"), "is a pipe");
        let mut text = String::new();
        open(&at("good")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "1,2,a");
        assert!(matches!(open(&at("nothing")), Err(DatasetError::Read { .. })));
    }

    #[test]
    fn what_is_larger_than_memory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("huge.csv");
        // A sparse file: it has a length but takes no space.
        File::create(&path).unwrap().set_len(1 << 43).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("huge.csv holds 8796.1 GB"), "{error}");
    }
}
