//! Serves processes that attach: each says who it is, and is then read from and written to until its socket closes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use protocol::wire;
use protocol::wire::attach::FromWorker;
use protocol::wire::bounds::WORKERS_MAX;
use protocol::wire::frame::{CHUNK_BYTES, Kind};
use protocol::wire::link::MessageError;
use protocol::wire::prefix::Prefix;
use ractor::DerivedActorRef;
use tokio::io::{AsyncWriteExt, BufReader, BufWriter};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use super::handle::{Outbound, Route, SeatNotice, WorkerHandle, WorkersNotice};
use super::signals::{Detached, set};
use super::socket::WorkerSocket;
use crate::link::{self, LinkError};
use crate::log_throttle::LogThrottle;
use crate::node::mailbox::acquire;
use crate::run::WorkerKey;
use crate::run_exchange::RunExchangeEvent;
use crate::timing::WorkerTimes;

/// Maximum number of messages from one worker that were read and not handled yet.
const INBOX_MAX: usize = 64;
/// Maximum number of messages that wait to be written to one worker.
const OUTBOX_MAX: usize = 8192;

/// Accepts worker processes that attach to the node's socket, until the node stops.
pub(super) async fn accept(
    mut listener: WorkerSocket,
    version: String,
    times: WorkerTimes,
    parent: DerivedActorRef<WorkersNotice>,
    detached: Detached,
    mut stopped: watch::Receiver<bool>,
) {
    static KEYS: AtomicU64 = AtomicU64::new(1);
    let refusals = LogThrottle::default();
    let places = Arc::new(Semaphore::new(WORKERS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = set(&mut stopped) => return,
        };
        match accepted {
            Ok(stream) => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    tracing::warn!(
                        event = "worker_limit_reached",
                        "rejected a worker: a node serves at most {WORKERS_MAX} workers"
                    );
                    continue;
                };
                let key = WorkerKey(KEYS.fetch_add(1, Ordering::Relaxed));
                let (parent, version, mut stopped) = (parent.clone(), version.clone(), stopped.clone());
                let detached = Arc::clone(&detached);
                tokio::spawn(async move {
                    let serving = serve(stream, key, &version, times, &parent, &detached);
                    let ended = tokio::select! {
                        ended = serving => ended,
                        () = set(&mut stopped) => Ok(()),
                    };
                    if let Err(error) = ended {
                        tracing::warn!(
                            event = "worker_socket_closed", %error,
                            "the connection to a worker failed; the worker's socket is closed"
                        );
                    }
                    let _ = parent.send_message(WorkersNotice::Gone(key));
                    drop(place);
                });
            }
            Err(error) => {
                if refusals.is_due(Instant::now()) {
                    tracing::warn!(
                        event = "worker_connection_failed", %error,
                        "workers cannot connect to this node; retrying"
                    );
                }
                tokio::time::sleep(times.restart_pause).await;
            }
        }
    }
}

/// Serves one attached worker until its connection ends: passes its messages to the node's actors, and writes the
/// node's messages to it.
async fn serve(
    stream: UnixStream,
    key: WorkerKey,
    version: &str,
    times: WorkerTimes,
    parent: &DerivedActorRef<WorkersNotice>,
    detached: &Detached,
) -> Result<(), LinkError> {
    let (reader, writer) = stream.into_split();
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, reader);
    let hello = timeout(times.hello, link::read_frame(&mut reader)).await;
    let Ok(Some((Kind::Message, contents))) = hello.unwrap_or(Ok(None)) else {
        return Err(MessageError::OutOfPlace.into());
    };
    let FromWorker::Hello(info) = wire::decode(&contents)? else {
        return Err(MessageError::OutOfPlace.into());
    };
    if info.version != version {
        tracing::error!(
            event = "worker_version_rejected",
            worker = info.version,
            expected = version,
            "rejected a worker of another release: start the worker with the same program as the node"
        );
        return Ok(());
    }
    let (outbox, messages) = mpsc::channel(OUTBOX_MAX);
    let (hang_up, mut hung_up) = watch::channel(false);
    let queued = Arc::new(AtomicUsize::new(0));
    let process = info.pid;
    let handle = WorkerHandle {
        key,
        info,
        speed: 0,
        outbox,
        queued: Arc::clone(&queued),
        hang_up: Arc::new(hang_up),
        route: Route::default(),
    };
    let route = Arc::clone(&handle.route);
    let _ = parent.send_message(WorkersNotice::Attached(handle));
    let ended = tokio::select! {
        read = read(&mut reader, key, &route, parent, times.silence) => read,
        written = write(BufWriter::with_capacity(CHUNK_BYTES, writer), messages, &queued) => written,
        () = set(&mut hung_up) => Ok(()),
    };
    // Mostly the process has ended. If it has not, it is ended now.
    detached.send_if_modified(|all| all.insert(process));
    ended
}

/// Reads a worker's messages: batches go to the exchange of the run that the worker takes part in, reports to the run's
/// actor.
async fn read(
    reader: &mut (impl tokio::io::AsyncRead + Unpin),
    key: WorkerKey,
    route: &Route,
    parent: &DerivedActorRef<WorkersNotice>,
    limit: Duration,
) -> Result<(), LinkError> {
    let room = Arc::new(Semaphore::new(INBOX_MAX));
    loop {
        let read = timeout(limit, link::read_frame(reader)).await;
        let Some((kind, contents)) = read.unwrap_or(Err(LinkError::Silent))? else {
            return Ok(());
        };
        // Batches of a worker without a seat are dropped.
        let to_seat = |event, permit| {
            if let Some(to) = &*route.lock().unwrap_or_else(PoisonError::into_inner) {
                let _ = to.send_message(SeatNotice { event, permit });
            }
        };
        let worker = key;
        match kind {
            Kind::Batch => {
                let permit = acquire(&room).await;
                let bytes = Arc::from(contents);
                to_seat(RunExchangeEvent::Batch { worker, bytes }, permit);
            }
            Kind::Flow => {
                let permit = acquire(&room).await;
                let bytes = Arc::from(contents);
                to_seat(RunExchangeEvent::Flow { worker, bytes }, permit);
            }
            Kind::Prefix => {
                let permit = acquire(&room).await;
                let prefix = Prefix::decode(&contents)?;
                to_seat(RunExchangeEvent::Prefix { worker, prefix }, permit);
            }
            Kind::Message => match wire::decode(&contents)? {
                // The message is about the batches before it, and must not be overtaken by those after it.
                FromWorker::Saved { sequence, path } => {
                    to_seat(RunExchangeEvent::Saved { worker, sequence, path }, None);
                }
                message => {
                    let message = Box::new(message);
                    if parent.send_message(WorkersNotice::Said { key, message }).is_err() {
                        return Ok(());
                    }
                }
            },
            Kind::Have | Kind::Origin | Kind::Hello | Kind::Piece | Kind::Note | Kind::Bundle | Kind::Part => {
                return Err(MessageError::OutOfPlace.into());
            }
        }
    }
}

async fn write(
    mut writer: BufWriter<tokio::net::unix::OwnedWriteHalf>,
    mut messages: mpsc::Receiver<Outbound>,
    queued: &AtomicUsize,
) -> Result<(), LinkError> {
    while let Some(message) = messages.recv().await {
        match message {
            Outbound::Message(message) => {
                link::write_frame(&mut writer, Kind::Message, &wire::encode(&message)?).await?;
            }
            Outbound::Frame(kind, contents) => {
                link::write_frame(&mut writer, kind, &contents).await?;
                queued.fetch_sub(contents.len(), Ordering::Relaxed);
            }
        }
        if messages.is_empty() {
            writer.flush().await?;
        }
    }
    Ok(())
}
