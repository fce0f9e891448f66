//! The way to an attached worker, and what is heard of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use protocol::wire::attach::{FromWorker, ToWorker, WorkerInfo};
use protocol::wire::frame::Kind;
use ractor::DerivedActorRef;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use crate::run::WorkerKey;
use crate::run_exchange::RunExchangeEvent;

/// Bytes on their way to one worker. A worker that lags further behind is started afresh.
const OUTBOX_BYTES_MAX: usize = 256 << 20;

/// What the supervisor tells of its workers.
pub(crate) enum WorkersNotice {
    /// A worker is there.
    Attached(WorkerHandle),
    /// A worker is gone.
    Gone(WorkerKey),
    /// A worker says something.
    Said { key: WorkerKey, message: Box<FromWorker> },
}

/// What a worker with a seat sends to the exchange.
pub(crate) struct SeatNotice {
    /// What has happened by it.
    pub(crate) event: RunExchangeEvent,
    /// Room for the next message of its size, when this is done.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

/// What is written to a worker.
#[derive(Debug)]
pub(super) enum Outbound {
    Message(ToWorker),
    /// The contents of a frame of this kind.
    Frame(Kind, Arc<[u8]>),
}

/// Where a worker's batches go: nowhere, unless it has a seat.
pub(super) type Route = Arc<Mutex<Option<DerivedActorRef<SeatNotice>>>>;

/// The way to an attached worker.
#[derive(Clone)]
pub(crate) struct WorkerHandle {
    /// Its name here.
    pub(crate) key: WorkerKey,
    pub(crate) info: WorkerInfo,
    /// How fast it has said that it is.
    pub(crate) speed: u64,
    pub(super) outbox: mpsc::Sender<Outbound>,
    /// Bytes of batches in the outbox.
    pub(super) queued: Arc<AtomicUsize>,
    pub(super) hang_up: Arc<watch::Sender<bool>>,
    pub(super) route: Route,
}

impl WorkerHandle {
    /// Sends its batches there from now on, straight from its socket.
    pub(crate) fn route_batches(&self, to: Option<DerivedActorRef<SeatNotice>>) {
        *self.route.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// Tells it something.
    pub(crate) fn tell(&self, message: ToWorker) {
        self.send(Outbound::Message(message), 0);
    }

    /// Hands it the contents of a frame: what others have made.
    pub(crate) fn deliver(&self, kind: Kind, contents: Arc<[u8]>) {
        let bytes = contents.len();
        self.send(Outbound::Frame(kind, contents), bytes);
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
