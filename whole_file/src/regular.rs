//! Distinguishes regular files from pipes, devices and folders before anything is opened or replaced.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::path::Path;

/// Reason for which a file was not opened.
#[derive(Debug)]
pub enum OpenError {
    /// The path names a pipe, a device, a socket or a folder; the text is its kind, with an article.
    NotRegular(&'static str),
    /// The operating system refused to open the file.
    Io(io::Error),
}

/// Opens a regular file for reading. Never waits for the other end of a pipe, and never touches a device.
pub fn open(path: &Path) -> Result<File, OpenError> {
    let check = |found: FileType| irregular_kind(found).map_or(Ok(()), |kind| Err(OpenError::NotRegular(kind)));
    // The kind is checked before as well: opening a device may already have an effect.
    check(path.metadata().map_err(OpenError::Io)?.file_type())?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    // If a pipe has taken the file's place meanwhile, the open returns at once.
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path).map_err(OpenError::Io)?;
    check(file.metadata().map_err(OpenError::Io)?.file_type())?;
    Ok(file)
}

/// Returns the kind of a file that is not regular, with an article; `None` for a regular file.
#[must_use]
pub fn irregular_kind(found: FileType) -> Option<&'static str> {
    if found.is_file() {
        return None;
    }
    if found.is_dir() {
        return Some("a folder");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_fifo() {
            return Some("a pipe");
        }
        if found.is_socket() {
            return Some("a socket");
        }
    }
    Some("a device")
}

/// Returns true if a path leads to a pipe or a character device, to which bytes are written straight through, in order.
#[must_use]
pub fn is_stream(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let is_stream = |found: FileType| found.is_fifo() || found.is_char_device();
        path.metadata().is_ok_and(|found| is_stream(found.file_type()))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}
