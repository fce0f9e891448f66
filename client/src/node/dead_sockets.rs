//! Removes sockets that killed nodes have left in a folder.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Age of a socket file below which the file may belong to a node that is about to listen on it.
const YOUNG: Duration = Duration::from_secs(10);

/// Removes the sockets in a folder that no process listens on any more.
pub(crate) fn remove(folder: &Path) {
    remove_older_than(YOUNG, folder);
}

fn remove_older_than(age: Duration, folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_old_socket = path.extension().is_some_and(|ending| ending == "sock")
            && std::fs::symlink_metadata(&path).is_ok_and(|found| {
                let lived = found.modified().ok().and_then(|made| made.elapsed().ok());
                found.file_type().is_socket() && lived.is_some_and(|lived| lived >= age)
            });
        if is_old_socket && nobody_listens(&path) {
            // Another node may have removed the socket first.
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn nobody_listens(socket: &Path) -> bool {
    // A running node accepts the connection, and drops it after a time without a message.
    matches!(UnixStream::connect(socket), Err(error) if error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_sockets_that_nobody_listens_on_go() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let _living = UnixListener::bind(at("vm-living.sock")).unwrap();
        drop(UnixListener::bind(at("vm-dead.sock")).unwrap());
        drop(UnixListener::bind(at("other")).unwrap());
        std::fs::write(at("file.sock"), "").unwrap();
        remove(folder.path());
        assert!(
            at("vm-dead.sock").exists(),
            "a socket that was made a moment ago must stay"
        );
        remove_older_than(Duration::ZERO, folder.path());
        assert!(!at("vm-dead.sock").exists());
        for kept in ["vm-living.sock", "other", "file.sock"] {
            assert!(at(kept).exists(), "{kept}");
        }
    }
}
