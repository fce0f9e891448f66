//! Inspection of this machine for a client that asks if a run could begin: its clock, and the data that a run would
//! open.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use protocol::job::data::{DataInfo, DataSpec};
use protocol::wire::control::{DataInspection, Reply};
use ractor::RpcReplyPort;
use tokio::sync::watch;

use crate::control::Payload;

/// Maximum number of datasets that are read at the same time: each may take all the memory that there is.
const READING_MAX: usize = 1;

/// Function that reads data; its error is one sentence.
type Read = dyn Fn(&DataSpec) -> Result<DataInfo, String> + Send + Sync;

/// The function by which this machine reads data that a client asks about.
#[derive(Clone)]
pub struct DataReader(Arc<Read>);

impl DataReader {
    /// Makes a reader from a function that reads data and describes it; the function's error is one sentence.
    pub fn new(read: impl Fn(&DataSpec) -> Result<DataInfo, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for DataReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataReader")
    }
}

/// Time for which the result of reading data is kept for a client that asks again; it is short because files change.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Result of reading data for a client, and the time at which it was read; `None` while the data is being read.
type InspectedData = Option<(Instant, Result<DataInfo, String>)>;

/// Reads data that clients ask about, and remembers the result until a client has got it.
#[derive(Clone, Debug)]
pub(super) struct DataInspector {
    reader: DataReader,
    /// Time after which a client gets an answer without a result; it may ask again.
    patience: Duration,
    under_way: Arc<Mutex<BTreeMap<String, watch::Receiver<InspectedData>>>>,
}

impl DataInspector {
    pub(super) fn new(reader: DataReader, patience: Duration) -> Self {
        Self {
            reader,
            patience,
            under_way: Arc::default(),
        }
    }

    /// Answers a client that asks about data on this machine: at once if the client names no data, else when the data
    /// is read or reading has taken too long.
    pub(super) fn answer(&self, data: Option<DataSpec>, reply: RpcReplyPort<Payload<Reply>>) {
        let Some(data) = data else {
            return tell(reply, None);
        };
        let Some(mut found) = self.read(&data) else {
            let other = Err("this node is busy reading other data: ask again in a moment".into());
            return tell(reply, Some(other));
        };
        let inspector = self.clone();
        tokio::spawn(async move {
            let read = tokio::time::timeout(inspector.patience, found.wait_for(Option::is_some)).await;
            let found = match read {
                Ok(Ok(found)) => found.as_ref().map(|(_, found)| found.clone()),
                Ok(Err(_)) => Some(Err(
                    "the thread that read the data has failed: see this node's log".into()
                )),
                Err(_) => None,
            };
            if found.is_some() {
                inspector.lock().remove(&data.to_string());
            }
            tell(reply, found);
        });
    }

    /// Starts to read data for a client. Returns the channel of the result, also if the data is being read already;
    /// `None` while other data is being read.
    fn read(&self, data: &DataSpec) -> Option<watch::Receiver<InspectedData>> {
        let mut under_way = self.lock();
        under_way.retain(|_, found| match &*found.borrow() {
            Some((when, _)) => when.elapsed() < REMEMBERED,
            // A channel that can no longer change belongs to a thread that is gone.
            None => found.has_changed().is_ok(),
        });
        if let Some(found) = under_way.get(&data.to_string()) {
            return Some(found.clone());
        }
        let reading = under_way.values().filter(|found| found.borrow().is_none()).count();
        if reading >= READING_MAX {
            return None;
        }
        let (finding, found) = watch::channel(None);
        let (reader, spec) = (self.reader.clone(), data.clone());
        // A thread of its own, not one of the runtime's: a node that stops does not wait for it.
        std::thread::spawn(move || {
            let found = (reader.0)(&spec);
            finding.send_replace(Some((Instant::now(), found)));
        });
        under_way.insert(data.to_string(), found.clone());
        Some(found)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, watch::Receiver<InspectedData>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(reply: RpcReplyPort<Payload<Reply>>, data: Option<Result<DataInfo, String>>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let inspection = DataInspection {
        clock: now.as_secs_f64(),
        data,
    };
    // The client may be gone.
    let _ = reply.send(Reply::DataInspected(inspection).into());
}
