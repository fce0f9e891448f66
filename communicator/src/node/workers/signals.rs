//! Signals between the tasks of the worker supervisor.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

/// Ids of the worker processes whose connection to this node has ended; a process that goes on without it is killed.
pub(super) type Detached = Arc<watch::Sender<BTreeSet<u32>>>;

/// Waits until a flag is set, or its sender is gone.
pub(super) async fn set(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|set| *set).await;
}
