//! Writes ledgers to checkpoint files.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::wire::snapshot::Head;

use crate::checkpoint::{self, Header};
use crate::log_context::NEWS;

/// Time for which the last checkpoint of a run waits until the run's model file is written in the same folder.
const MODEL_LIMIT: Duration = Duration::from_mins(1);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Writes the last checkpoint of a run once the run's model file lies beside it: the model comes first, because the
/// disk may have room for only one of them. If no model file comes in time, no checkpoint is written here: the replica
/// is then saved in place of the model.
pub(super) fn write_last(path: &Path, header: &Header, head: Head, counts: Arc<[i32]>) {
    let (since, model) = (Instant::now(), path.with_extension("safetensors"));
    while !model.exists() {
        if since.elapsed() > MODEL_LIMIT {
            return;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    let written = checkpoint::write(path, header, head, counts);
    let path = path.display();
    if let Err(error) = written {
        tracing::warn!(
            event = "last_checkpoint_failed", %error, %path,
            "the last checkpoint could not be written: the finished run cannot be resumed later"
        );
    } else {
        tracing::info!(
            event = "last_checkpoint_written", %path,
            "the finished run's weights are kept in a checkpoint: continue training with --resume"
        );
    }
}

/// Writes a checkpoint, and removes the workers' state files of earlier checkpoints.
pub(super) fn write(path: &Path, header: &Header, head: Head, counts: Arc<[i32]>) {
    let folder = path.parent().unwrap_or(Path::new("."));
    let written = std::fs::create_dir_all(folder).and_then(|()| checkpoint::write(path, header, head, counts));
    if let Err(error) = written {
        let path = path.display();
        tracing::error!(
            event = "checkpoint_failed", %error, %path,
            "a checkpoint could not be written, and the run continues without it: free disk space"
        );
        return;
    }
    tracing::info!(target: NEWS, event = "checkpoint_written", path = %path.display(), "a checkpoint is written");
    let stem = path.file_stem().unwrap_or_default();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.path();
        let old = file.extension() == Some(OsStr::new("state"))
            && file
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().starts_with(stem.as_encoded_bytes()))
            && !header.states.iter().any(|state| state.path == file);
        if old {
            let _ = std::fs::remove_file(file);
        }
    }
}
