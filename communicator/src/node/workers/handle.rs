//! Handles of attached workers, and notices about them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use protocol::wire::attach::{FromWorker, ToWorker, WorkerInfo};
use protocol::wire::frame::Kind;
use ractor::DerivedActorRef;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use crate::run::WorkerKey;
use crate::run_exchange::RunExchangeEvent;

/// Maximum number of bytes that wait to be written to one worker. A worker that lags further behind is started again.
const OUTBOX_BYTES_MAX: usize = 256 << 20;

/// Notice of the worker supervisor to its parent, the run's actor.
pub(crate) enum WorkersNotice {
    /// A worker has attached.
    Attached(WorkerHandle),
    /// A worker has disconnected.
    Gone(WorkerKey),
    /// A worker has sent a message.
    Said { key: WorkerKey, message: Box<FromWorker> },
}

/// Message to the exchange from a worker that takes part in the run.
pub(crate) struct SeatNotice {
    /// The worker's message, as an event for the exchange's core.
    pub(crate) event: RunExchangeEvent,
    /// Permit for the queue of the worker's unhandled messages: dropping it makes room for the next one.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

/// Message that is written to a worker.
#[derive(Debug)]
pub(super) enum Outbound {
    Message(ToWorker),
    /// A frame that is written to the worker as it is: its kind and its encoded contents.
    Frame(Kind, Arc<[u8]>),
}

/// Receiver of a worker's batches; `None` unless the worker takes part in a run.
pub(super) type Route = Arc<Mutex<Option<DerivedActorRef<SeatNotice>>>>;

/// Handle by which other actors talk to an attached worker.
#[derive(Clone)]
pub(crate) struct WorkerHandle {
    /// Key of the worker on this node.
    pub(crate) key: WorkerKey,
    pub(crate) info: WorkerInfo,
    /// Speed that the worker has measured and reported, in million products of two numbers per second. A model is cut
    /// into pipeline stages by the nodes' speeds.
    pub(crate) speed: u64,
    pub(super) outbox: mpsc::Sender<Outbound>,
    /// Number of bytes that wait to be written to the worker.
    pub(super) queued: Arc<AtomicUsize>,
    pub(super) hang_up: Arc<watch::Sender<bool>>,
    pub(super) route: Route,
}

impl WorkerHandle {
    /// Sends the worker's batches to this receiver from now on, straight from the worker's socket.
    pub(crate) fn route_batches(&self, to: Option<DerivedActorRef<SeatNotice>>) {
        *self.route.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// Sends a message to the worker.
    pub(crate) fn tell(&self, message: ToWorker) {
        self.send(Outbound::Message(message), 0);
    }

    /// Sends the worker a frame that others have made, such as a batch.
    pub(crate) fn deliver(&self, kind: Kind, contents: Arc<[u8]>) {
        let bytes = contents.len();
        self.send(Outbound::Frame(kind, contents), bytes);
    }

    /// Closes the worker's socket: its process ends, and is started again.
    pub(crate) fn hang_up(&self) {
        self.hang_up.send_replace(true);
    }

    fn send(&self, message: Outbound, bytes: usize) {
        let queued = self.queued.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // A worker is never waited for. One that takes no messages has lost its way, and begins again from the ledger.
        if queued > OUTBOX_BYTES_MAX || self.outbox.try_send(message).is_err() {
            self.hang_up();
        }
    }
}
