//! The socket that workers attach to. Only this user can open it, from its first moment on, and it is made again if it
//! is removed.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// The listening socket in the node's folder to which workers attach.
pub(super) struct WorkerSocket {
    path: PathBuf,
    listener: UnixListener,
    /// Inode of the socket's file, by which a replaced file is recognised.
    inode: u64,
    look: Interval,
}

impl WorkerSocket {
    /// Makes the socket to which workers attach. `look_every` is the interval at which its file is checked.
    pub(super) fn bind(path: &Path, look_every: Duration) -> io::Result<Self> {
        let (listener, inode) = listen(path)?;
        let mut look = interval(look_every);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            path: path.into(),
            listener,
            inode,
            look,
        })
    }

    /// Waits for the next worker process that attaches to the socket. The future may be dropped at any time without
    /// loss.
    pub(super) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => return accepted.map(|(stream, _)| stream),
                _ = self.look.tick() => self.renew()?,
            }
        }
    }

    /// Makes the workers' socket again if its file is gone: clearing the folder is not meant to keep later workers out.
    fn renew(&mut self) -> io::Result<()> {
        if inode(&self.path).ok() == Some(self.inode) {
            return Ok(());
        }
        tracing::warn!(
            event = "worker_socket_recreated", socket = %self.path.display(),
            "the socket for workers was removed; this node creates it again"
        );
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        (self.listener, self.inode) = listen(&self.path)?;
        Ok(())
    }

    /// Removes the file of the workers' socket.
    pub(super) fn remove(path: &Path) {
        let _ = std::fs::remove_file(path);
    }
}

fn inode(path: &Path) -> io::Result<u64> {
    std::fs::symlink_metadata(path).map(|found| found.ino())
}

/// Makes a listening socket to which only this user can connect, and returns the inode of its file. For a moment a new
/// socket has wider rights, so it is made in a folder that no other user can enter, and then moved to its path.
fn listen(path: &Path) -> io::Result<(UnixListener, u64)> {
    let folder = path.parent().unwrap_or(Path::new("."));
    // These names are shorter than the names of Tau's sockets, so this path is not too long if the final one is not.
    let private = tempfile::Builder::new()
        .prefix(".s")
        .rand_bytes(6)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(folder)?;
    let made = private.path().join("s");
    let listener = UnixListener::bind(&made)?;
    std::fs::set_permissions(&made, Permissions::from_mode(0o600))?;
    let inode = inode(&made)?;
    std::fs::rename(&made, path)?;
    Ok((listener, inode))
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);
    const LOOK_EVERY: Duration = Duration::from_millis(20);

    /// Connects to a worker socket as soon as its file is there.
    async fn connect(path: &Path) -> UnixStream {
        let trying = async {
            loop {
                match UnixStream::connect(path).await {
                    Ok(stream) => return stream,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        timeout(PATIENCE, trying)
            .await
            .expect("no socket to connect to appeared in time")
    }

    #[tokio::test]
    async fn only_its_owner_can_open_it_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n.sock");
        let mut socket = WorkerSocket::bind(&path, LOOK_EVERY).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let (accepted, _worker) = tokio::join!(socket.accept(), connect(&path));
        accepted.unwrap();
    }

    #[tokio::test]
    async fn it_is_made_again_when_its_folder_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node").join("n.sock");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let mut socket = WorkerSocket::bind(&path, LOOK_EVERY).unwrap();
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        let accepting = timeout(PATIENCE, socket.accept());
        let (accepted, _worker) = tokio::join!(accepting, connect(&path));
        accepted.unwrap().unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
