//! The worker supervisor: keeps worker processes running and attached.
//!
//! Workers attach to a socket that only this user can open. The node starts its own workers, and starts them again,
//! after a pause that grows, when they end or are stuck; others can be attached by hand.

mod attaching;
mod handle;
mod process;
mod restart_pause;
mod signals;
mod socket;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef, DerivedActorRef};
use ractor_cluster::RactorMessage;
use tokio::sync::{mpsc, watch};

use crate::timing::WorkerTimes;
use attaching::accept;
pub(crate) use handle::{SeatNotice, WorkerHandle, WorkersNotice};
pub use process::WorkerCommand;
use process::keep_running;
use signals::Detached;
use socket::WorkerSocket;

/// Messages to the worker supervisor: there are none, because it acts on processes and sockets.
#[derive(RactorMessage)]
pub(crate) enum WorkersMessage {}

/// Arguments with which the worker supervisor is started.
pub(crate) struct WorkersArguments {
    /// Path of the socket to which workers attach.
    pub(crate) socket: PathBuf,
    /// Command that starts workers.
    pub(crate) command: WorkerCommand,
    /// Tau release that workers must be of.
    pub(crate) version: String,
    /// Interval at which the supervisor checks that the socket to which workers attach still has its file.
    pub(crate) socket_look: Duration,
    /// Intervals and time limits of worker processes.
    pub(crate) times: WorkerTimes,
    /// Actor that gets the notices about workers.
    pub(crate) parent: DerivedActorRef<WorkersNotice>,
}

pub(crate) struct WorkersActor;

pub(crate) struct Workers {
    socket: PathBuf,
    stop: watch::Sender<bool>,
    /// Channel that closes when the tasks that keep worker processes running are over: each task holds a sender.
    gone: Option<mpsc::Receiver<()>>,
}

impl Actor for WorkersActor {
    type Msg = WorkersMessage;
    type State = Workers;
    type Arguments = WorkersArguments;

    async fn pre_start(
        &self,
        _myself: ActorRef<WorkersMessage>,
        arguments: WorkersArguments,
    ) -> Result<Workers, ActorProcessingErr> {
        let WorkersArguments {
            socket,
            command,
            version,
            socket_look,
            times,
            parent,
        } = arguments;
        let listener = WorkerSocket::bind(&socket, socket_look)?;
        let (stop, stopped) = watch::channel(false);
        let detached: Detached = Arc::default();
        let (holding, gone) = mpsc::channel(1);
        for _ in 0..command.count {
            tokio::spawn(keep_running(
                command.clone(),
                socket.clone(),
                times,
                stopped.clone(),
                Arc::clone(&detached),
                holding.clone(),
            ));
        }
        tokio::spawn(accept(listener, version, times, parent, detached, stopped));
        Ok(Workers {
            socket,
            stop,
            gone: Some(gone),
        })
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<WorkersMessage>,
        state: &mut Workers,
    ) -> Result<(), ActorProcessingErr> {
        state.stop.send_replace(true);
        if let Some(mut gone) = state.gone.take() {
            // Nothing is ever sent: the channel closes when all senders are gone.
            let _ = gone.recv().await;
        }
        WorkerSocket::remove(&state.socket);
        Ok(())
    }
}
