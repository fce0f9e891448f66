//! Signals between the tasks of the worker supervisor.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

/// Ids of the processes that have lost their sockets.
pub(super) type Detached = Arc<watch::Sender<BTreeSet<u32>>>;

/// Waits until a flag is set, or can be set no more.
pub(super) async fn set(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|set| *set).await;
}
