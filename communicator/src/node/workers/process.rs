//! Starts worker processes, and starts them again when they end or are stuck.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::restart_pause::RestartPause;
use super::signals::{Detached, set};
use crate::timing::WorkerTimes;

/// Command that starts worker processes.
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    /// Path of the worker program.
    pub program: PathBuf,
    /// Arguments of the worker program; the socket's path is appended.
    pub arguments: Vec<OsString>,
    /// Environment variables of the worker program besides those of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// Number of worker processes that the node starts.
    pub count: usize,
}

/// Waits until a worker process has ended. A process whose connection to the node has ended, for whatever reason, is
/// killed if it does not end by itself within `limit`.
async fn end_of(child: &mut Child, detached: &Detached, limit: Duration) {
    let process = child.id();
    // The id of the process may have been another's before.
    detached.send_if_modified(|all| process.is_some_and(|process| all.remove(&process)));
    let mut news = detached.subscribe();
    let lost = async {
        let found = |all: &BTreeSet<u32>| process.is_some_and(|process| all.contains(&process));
        // The sender is alive here, so waiting cannot fail.
        let _ = news.wait_for(found).await;
    };
    tokio::select! {
        status = child.wait() => match status {
            // The process was told to end, or its node is about to stop: a failure would have another status.
            Ok(status) if status.success() => tracing::debug!(
                event = "worker_exited",
                "a worker process has ended and is restarted"
            ),
            Ok(status) => tracing::warn!(
                event = "worker_exited", %status,
                "a worker process has ended and is restarted"
            ),
            Err(error) => tracing::warn!(
                event = "worker_lost", %error,
                "cannot wait for a worker process any more; it is restarted"
            ),
        },
        () = lost => {
            if timeout(limit, child.wait()).await.is_err() {
                tracing::warn!(
                    event = "worker_killed",
                    "a worker process has lost its socket and does not end; it is killed and restarted"
                );
                let _ = child.kill().await;
            }
        }
    }
}

/// Keeps one worker process running until the node stops.
pub(super) async fn keep_running(
    command: WorkerCommand,
    socket: PathBuf,
    times: WorkerTimes,
    mut stopped: watch::Receiver<bool>,
    detached: Detached,
    _holding: mpsc::Sender<()>,
) {
    let mut pauses = RestartPause::new(times);
    loop {
        let started = Instant::now();
        let spawned = tokio::process::Command::new(&command.program)
            .args(&command.arguments)
            .envs(command.environment.iter().cloned())
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // Ctrl-C in a terminal is for the node, which then ends its workers in good order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        match spawned {
            Ok(mut child) => tokio::select! {
                () = end_of(&mut child, &detached, times.end) => {}
                () = set(&mut stopped) => {
                    // The worker's socket is closed by now. Dropping `child` kills a process that does not end by
                    // itself.
                    let _ = timeout(times.end, child.wait()).await;
                    return;
                }
            },
            Err(error) => tracing::error!(
                event = "worker_start_failed", %error,
                "a worker process could not be started; retrying"
            ),
        }
        tokio::select! {
            () = tokio::time::sleep(pauses.after(started.elapsed())) => {}
            () = set(&mut stopped) => return,
        }
    }
}
