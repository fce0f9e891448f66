//! The worker supervisor: keeps worker processes running and attached.
//!
//! Workers attach to a socket that only this user can open. The node starts its own and starts them again when they end,
//! after a pause that grows, or when they are stuck; others can be attached by hand.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use protocol::attach::{FromWorker, ToWorker, WorkerInfo};
use protocol::bounds::WORKERS_MAX;
use protocol::frame::{CHUNK_BYTES, Kind};
use ractor::{Actor, ActorProcessingErr, ActorRef, DerivedActorRef};
use ractor_cluster::RactorMessage;
use tokio::io::{AsyncWriteExt, BufReader, BufWriter};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;

use super::mailbox::acquire;
use super::worker_socket::WorkerSocket;
use crate::link::{self, LinkError};
use crate::rarely::Rarely;
use crate::run::WorkerKey;
use crate::timing::WorkerTimes;

/// Messages of one worker that were read and not dealt with.
const INBOX_MAX: usize = 64;
/// Messages on their way to one worker, and their bytes. A worker that lags further behind is started afresh.
const OUTBOX_MAX: usize = 8192;
const OUTBOX_BYTES_MAX: usize = 256 << 20;

/// How worker processes are started.
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments; the socket's path is appended.
    pub arguments: Vec<OsString>,
    /// What its environment has besides this process's.
    pub environment: Vec<(OsString, OsString)>,
    /// How many are started.
    pub count: usize,
}

/// What is written to a worker.
#[derive(Debug)]
enum Outbound {
    Word(ToWorker),
    Batch(Arc<[u8]>),
}

/// What the supervisor tells of its workers.
pub(crate) enum WorkersNotice {
    /// A worker is there.
    Attached(WorkerHandle),
    /// A worker is gone.
    Gone(WorkerKey),
    /// A worker says something.
    Said {
        /// Which.
        key: WorkerKey,
        /// What.
        word: Box<FromWorker>,
    },
}

/// What a worker with a seat sends to the exchange, in this order.
pub(crate) enum SeatNotice {
    /// It made a batch.
    Batch {
        /// Which worker.
        key: WorkerKey,
        /// The batch.
        bytes: Arc<[u8]>,
        /// Room for the next one, when this is done.
        permit: Option<OwnedSemaphorePermit>,
    },
    /// It has written, or is about to have written, what it alone has.
    Saved {
        /// Which worker.
        key: WorkerKey,
        /// After which of its batches; none if it has not.
        sequence: Option<u64>,
        /// Where.
        path: PathBuf,
    },
}

/// Where a worker's batches go: nowhere, unless it has a seat.
type Route = Arc<Mutex<Option<DerivedActorRef<SeatNotice>>>>;

/// The way to an attached worker.
#[derive(Clone)]
pub(crate) struct WorkerHandle {
    /// Its name here.
    pub(crate) key: WorkerKey,
    /// Who it is.
    pub(crate) info: WorkerInfo,
    outbox: mpsc::Sender<Outbound>,
    queued: Arc<AtomicUsize>,
    hang_up: Arc<watch::Sender<bool>>,
    route: Route,
}

impl WorkerHandle {
    /// Sends its batches there from now on, straight from its socket.
    pub(crate) fn route_batches(&self, to: Option<DerivedActorRef<SeatNotice>>) {
        *self.route.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// Tells it something.
    pub(crate) fn tell(&self, word: ToWorker) {
        self.send(Outbound::Word(word), 0);
    }

    /// Hands it a batch.
    pub(crate) fn deliver(&self, bytes: &Arc<[u8]>) {
        self.send(Outbound::Batch(Arc::clone(bytes)), bytes.len());
    }

    /// Takes the socket from it: the process ends, and is started again.
    pub(crate) fn hang_up(&self) {
        self.hang_up.send_replace(true);
    }

    fn send(&self, message: Outbound, bytes: usize) {
        let queued = self.queued.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Nobody waits for a worker. One that takes nothing has lost its way and begins again from the ledger.
        if queued > OUTBOX_BYTES_MAX || self.outbox.try_send(message).is_err() {
            self.hang_up();
        }
    }
}

/// The supervisor is told nothing: it acts on processes and sockets.
#[derive(RactorMessage)]
pub(crate) enum WorkersMessage {}

/// What the supervisor is started with.
pub(crate) struct WorkersArguments {
    /// Where workers attach.
    pub(crate) socket: PathBuf,
    /// How they are started.
    pub(crate) command: WorkerCommand,
    /// The release that they must be of.
    pub(crate) version: String,
    /// How often their socket is looked for.
    pub(crate) socket_look: Duration,
    /// How long they are waited for.
    pub(crate) times: WorkerTimes,
    /// Who is told of them.
    pub(crate) parent: DerivedActorRef<WorkersNotice>,
}

/// The supervisor.
pub(crate) struct WorkersActor;

/// The supervisor's state.
pub(crate) struct Workers {
    socket: PathBuf,
    stop: watch::Sender<bool>,
    /// Held by every process's task; the last one gone tells that all are.
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
            // Nothing is ever sent: it ends when all holders are gone.
            let _ = gone.recv().await;
        }
        WorkerSocket::remove(&state.socket);
        Ok(())
    }
}

/// Waits until a flag is set, or can be set no more.
async fn set(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|set| *set).await;
}

/// Processes that have lost their sockets.
type Detached = Arc<watch::Sender<BTreeSet<u32>>>;

/// Waits until a process has ended. One that has lost its socket, for whatever reason, and does not end is killed.
async fn end_of(child: &mut Child, detached: &Detached, limit: Duration) {
    let process = child.id();
    // Its number may have been another's before.
    detached.send_if_modified(|all| process.is_some_and(|process| all.remove(&process)));
    let mut news = detached.subscribe();
    let lost = async {
        let found = |all: &BTreeSet<u32>| process.is_some_and(|process| all.contains(&process));
        // Its sender is at hand, so there is nothing to fail.
        let _ = news.wait_for(found).await;
    };
    tokio::select! {
        status = child.wait() => match status {
            Ok(status) => tracing::warn!(%status, "a worker has ended; it is started again"),
            Err(error) => tracing::warn!(%error, "a worker is lost; it is started again"),
        },
        () = lost => {
            if timeout(limit, child.wait()).await.is_err() {
                tracing::warn!("a worker is stuck; it is killed and started again");
                let _ = child.kill().await;
            }
        }
    }
}

/// Keeps one process running until the node stops.
async fn keep_running(
    command: WorkerCommand,
    socket: PathBuf,
    times: WorkerTimes,
    mut stopped: watch::Receiver<bool>,
    detached: Detached,
    _holding: mpsc::Sender<()>,
) {
    let mut pause = times.restart_pause;
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
                    // Its socket is closed by now; dropping it kills what does not end by itself.
                    let _ = timeout(times.end, child.wait()).await;
                    return;
                }
            },
            Err(error) => tracing::error!(%error, "a worker could not be started"),
        }
        pause = if started.elapsed() > times.steady {
            times.restart_pause
        } else {
            (pause * 2).min(times.restart_pause_max)
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = set(&mut stopped) => return,
        }
    }
}

/// Takes processes that attach.
async fn accept(
    mut listener: WorkerSocket,
    version: String,
    times: WorkerTimes,
    parent: DerivedActorRef<WorkersNotice>,
    detached: Detached,
    mut stopped: watch::Receiver<bool>,
) {
    static KEYS: AtomicU64 = AtomicU64::new(1);
    let refusals = Rarely::default();
    let places = Arc::new(Semaphore::new(WORKERS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = set(&mut stopped) => return,
        };
        match accepted {
            Ok(stream) => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    tracing::warn!("a worker is turned away: a node has at most {WORKERS_MAX}");
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
                        tracing::warn!(%error, "a worker's socket is closed");
                    }
                    let _ = parent.send_message(WorkersNotice::Gone(key));
                    drop(place);
                });
            }
            Err(error) => {
                if refusals.is_due(Instant::now()) {
                    tracing::warn!(%error, "workers cannot be taken, and are tried again");
                }
                tokio::time::sleep(times.restart_pause).await;
            }
        }
    }
}

/// Serves one worker until its socket closes.
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
    let Ok(Some((Kind::Word, contents))) = hello.unwrap_or(Ok(None)) else {
        return Err(LinkError::OutOfPlace);
    };
    let FromWorker::Hello(info) = link::decode(&contents)? else {
        return Err(LinkError::OutOfPlace);
    };
    if info.version != version {
        tracing::error!(
            worker = info.version,
            node = version,
            "a worker of another release is turned away: start it with the same program as the node"
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
    // Mostly because it has ended. If it has not, it does now.
    detached.send_if_modified(|all| all.insert(process));
    ended
}

/// Reads what a worker sends: batches go where its seat is, words to the node.
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
        // One that has no seat any more, or not yet, has nobody to take its batches.
        let to_seat = |notice| {
            if let Some(to) = &*route.lock().unwrap_or_else(PoisonError::into_inner) {
                let _ = to.send_message(notice);
            }
        };
        match kind {
            Kind::Batch => {
                let permit = acquire(&room).await;
                let bytes = Arc::from(contents);
                to_seat(SeatNotice::Batch { key, bytes, permit });
            }
            Kind::Word => match link::decode(&contents)? {
                // It is about the batches before it, and must not be overtaken by those after it.
                FromWorker::Saved { sequence, path } => to_seat(SeatNotice::Saved { key, sequence, path }),
                word => {
                    let word = Box::new(word);
                    if parent.send_message(WorkersNotice::Said { key, word }).is_err() {
                        return Ok(());
                    }
                }
            },
            Kind::Have | Kind::Origin | Kind::Hello | Kind::Piece | Kind::Note => return Err(LinkError::OutOfPlace),
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
            Outbound::Word(word) => {
                link::write_frame(&mut writer, Kind::Word, &link::encode(&word)?).await?;
            }
            Outbound::Batch(bytes) => {
                link::write_frame(&mut writer, Kind::Batch, &bytes).await?;
                queued.fetch_sub(bytes.len(), Ordering::Relaxed);
            }
        }
        if messages.is_empty() {
            writer.flush().await?;
        }
    }
    Ok(())
}
