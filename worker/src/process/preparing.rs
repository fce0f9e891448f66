//! Opens data on a thread of its own, so that messages of the node are read meanwhile: a disk may be slow, or hang.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use protocol::ids::RunId;
use protocol::wire::attach::{COUNTS_PER_PIECE, FromWorker};

use super::prepared::Prepared;
use super::socket::Writer;
use crate::model_file::first_weights::FirstWeights;

/// Preparation of a job on background threads (opening the data, fitting the model), and its result.
#[derive(Default)]
pub(super) struct Preparing {
    newest: Arc<Mutex<Newest>>,
    /// Threads that prepare or have prepared a job and may not have ended yet.
    threads: Vec<JoinHandle<()>>,
}

/// The node's newest order to prepare a job, and the result.
#[derive(Default)]
struct Newest {
    /// Number of the newest order to prepare a job. A thread that works on an older order reports nothing.
    order: u64,
    prepared: Option<Arc<Prepared>>,
}

impl Preparing {
    /// Prepares a run in the background and reports the result to the node. Forgets all earlier orders.
    pub(super) fn ask(
        &mut self,
        run: RunId,
        writer: &Writer,
        open: impl FnOnce() -> Result<Prepared, String> + Send + 'static,
    ) -> io::Result<()> {
        let order = self.forget();
        let (newest, writer) = (Arc::clone(&self.newest), writer.clone());
        self.spawn(move || {
            let opened = open();
            let mut newest = lock(&newest);
            if newest.order != order {
                return;
            }
            let answer = match opened {
                Ok(prepared) => {
                    let (data, speed) = (prepared.data(), prepared.speed());
                    tell_first(run, &prepared, &writer);
                    newest.prepared = Some(Arc::new(prepared));
                    FromWorker::Prepared { run, data, speed }
                }
                Err(reason) => FromWorker::Refused { run, reason },
            };
            // Sent under the lock: once a newer order is taken, this one is not answered. The thread that reads the
            // socket notices when it is closed.
            let _ = writer.message(&answer);
        })
    }

    /// Forgets the prepared job and all preparations in progress. Returns the number of the next order.
    fn forget(&mut self) -> u64 {
        let mut newest = lock(&self.newest);
        newest.order += 1;
        newest.prepared = None;
        newest.order
    }

    /// Forgets the prepared job and makes all preparations obsolete; tells the node when none is in progress any more.
    /// If a thread hangs on a dead disk, the node hears nothing and ends this process.
    pub(super) fn clear(&mut self, writer: &Writer) -> io::Result<()> {
        self.forget();
        self.threads.retain(|thread| !thread.is_finished());
        if self.threads.is_empty() {
            return writer.message(&FromWorker::Idle);
        }
        let (threads, writer) = (std::mem::take(&mut self.threads), writer.clone());
        self.spawn(move || {
            for thread in threads {
                let _ = thread.join();
            }
            let _ = writer.message(&FromWorker::Idle);
        })
    }

    pub(super) fn prepared(&self) -> Option<Arc<Prepared>> {
        lock(&self.newest).prepared.clone()
    }

    fn spawn(&mut self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.retain(|thread| !thread.is_finished());
        self.threads
            .push(std::thread::Builder::new().name("prepare".into()).spawn(work)?);
        Ok(())
    }
}

/// Sends the initial weights of the run to the node if they come from a model file, because the node cannot compute
/// those from the job alone.
fn tell_first(run: RunId, prepared: &Prepared, writer: &Writer) {
    let Some(FirstWeights { counts, mut afresh }) = prepared.take_first() else {
        return;
    };
    for piece in counts.chunks(COUNTS_PER_PIECE) {
        let _ = writer.message(&FromWorker::First {
            run,
            counts: piece.to_vec(),
            afresh: std::mem::take(&mut afresh),
        });
    }
}

fn lock(newest: &Mutex<Newest>) -> MutexGuard<'_, Newest> {
    newest.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::process::read_frame;
    use crate::process::socket::ends;

    /// Starts a preparation that hangs until its sender is dropped, and then fails.
    fn hanging(preparing: &mut Preparing, run: u64, writer: &Writer) -> Sender<()> {
        let (release, hung) = channel::<()>();
        let open = move || {
            let _ = hung.recv();
            Err(format!("run {run} has no data"))
        };
        preparing.ask(RunId(run), writer, open).unwrap();
        release
    }

    fn refused(run: u64) -> FromWorker {
        FromWorker::Refused {
            run: RunId(run),
            reason: format!("run {run} has no data"),
        }
    }

    fn heard(node: &mut UnixStream) -> FromWorker {
        let (_, contents) = read_frame(node).unwrap().unwrap();
        postcard::from_bytes(&contents).unwrap()
    }

    #[test]
    fn a_newer_order_is_answered_while_the_older_one_hangs() {
        let (mut node, stream) = UnixStream::pair().unwrap();
        let (_reader, writer) = ends(stream).unwrap();
        let mut preparing = Preparing::default();
        let first = hanging(&mut preparing, 1, &writer);
        drop(hanging(&mut preparing, 2, &writer));
        assert_eq!(heard(&mut node), refused(2));
        // The late result of the older order is ignored.
        drop(first);
        preparing.clear(&writer).unwrap();
        assert_eq!(heard(&mut node), FromWorker::Idle);
        assert!(preparing.prepared().is_none());
    }

    #[test]
    fn idle_is_said_when_nothing_is_under_way_and_as_often_as_it_was_asked_for() {
        let (mut node, stream) = UnixStream::pair().unwrap();
        let (_reader, writer) = ends(stream).unwrap();
        let mut preparing = Preparing::default();
        preparing.clear(&writer).unwrap();
        assert_eq!(heard(&mut node), FromWorker::Idle);
        let hung = hanging(&mut preparing, 1, &writer);
        preparing.clear(&writer).unwrap();
        preparing.clear(&writer).unwrap();
        // The next order is taken meanwhile, and answered first.
        drop(hanging(&mut preparing, 2, &writer));
        assert_eq!(heard(&mut node), refused(2));
        drop(hung);
        assert_eq!(heard(&mut node), FromWorker::Idle);
        assert_eq!(heard(&mut node), FromWorker::Idle);
    }
}
